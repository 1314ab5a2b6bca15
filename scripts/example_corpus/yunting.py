"""Annual report of an invented water utility (Chinese, A4); its last page is a scanned tariff notice."""

from __future__ import annotations

from . import scenes
from .blocks import box, bullets, cards, footnotes, heading, page_head, panel, table
from .canvas import A4, Book, Canvas, Scan, Theme
from .charts import columns, lines

THEME = Theme(
    ink="#1f2f3d",
    muted="#6b7c8a",
    accent="#12588f",
    accent2="#18a0a6",
    line="#d2dee8",
    soft="#edf5fa",
    palette=("#12588f", "#18a0a6", "#f0a13a", "#9cc3dd", "#cfe0ec"),
)
LEFT, RIGHT = 48.0, 547.0
WIDTH = RIGHT - LEFT


def build() -> Book:
    book = Book("yunting_water_report_2025.pdf", "云汀市供水与水质年度报告 2025", "云汀供水集团", THEME, A4)
    for draw in (_cover, _overview, _quality, _plants, _losses):
        draw(book.page())
    _tariff(book.page(Scan(angle=0.5, noise=4)))
    return book


def _head(c: Canvas, page: int) -> None:
    page_head(c, "云汀供水集团", "供水与水质年度报告 2025", page)


def _cover(c: Canvas) -> None:
    lake = scenes.ridges(
        1000,
        900,
        8,
        sky=((120, 172, 210), (232, 240, 238)),
        far=(170, 198, 212),
        near=(16, 62, 86),
        terraces=False,
        lake=True,
    )
    c.image((0, 0, 595, 560), lake, 76)
    c.rect((0, 560, 595, 842), fill=THEME.accent)
    c.rect((0, 560, 595, 568), fill=THEME.accent2)
    c.text(LEFT, 80, "云汀供水集团", 20, "#ffffff", bold=True)
    c.text(LEFT, 640, "供水与水质年度报告", 40, "#ffffff", bold=True)
    c.text(LEFT, 692, "2025", 38, "#8fd8dc", bold=True)
    c.text(LEFT, 736, "从松屏水库到您家的水龙头", 15, "#d8e9f5")
    c.text(LEFT, 806, "云汀市滨湖路 18 号　·　2026 年 3 月发布", 10, "#b6d2e8")


def _overview(c: Canvas) -> None:
    _head(c, 2)
    y = heading(c, LEFT, 62, "一年概览", "2025 关键数字")
    cards(
        c,
        (LEFT, y, RIGHT, y + 234),
        "kpi",
        [
            ("全年供水量", "2.86 亿立方米", "比上年增长 1.8%"),
            ("服务人口", "213 万人", "覆盖六个城区"),
            ("管网总长度", "3,412 公里", "其中 2025 年更新 146 公里"),
            ("管网漏损率", "8.7%", "上年为 9.6%"),
            ("出厂水合格率", "99.98%", "国家要求 95% 以上"),
            ("热线接通时间", "平均 17 秒", "上年为 29 秒"),
        ],
        2,
    )
    y += 258
    c.text(LEFT, y + 12, "总经理致辞", 14, THEME.accent, bold=True)
    y += 28
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "2025 年夏天，云汀经历了三十一年来最长的一次干旱。松屏水库水位一度降到 [[level|41.6 米]]，"
        "离取水口下沿只差两米。我们启用了沉睡多年的"
        "[[backup|白鹭滩备用水源]]，连续供水五十二天，全市没有一个小区因此停水。\n\n"
        "干旱也让我们看清楚：省下来的水就是新的水源。三年来，我们把每一段老管道都装上了会“听”的传感器，"
        "漏点平均定位时间从六天缩短到"
        "[[locate|九个小时]]。第 5 页给出了漏损率的变化。\n\n"
        "明年我们要做三件事：建成北塘水厂的深度处理车间；让水费账单能用手机看懂；在六所小学开设“一滴水的旅行”课堂。",
        10.6,
        leading=1.75,
    )
    c.text(RIGHT, y + 22, "陆清和　总经理", 12, bold=True, align="right", mark="manager")
    view = scenes.ridges(
        1100,
        620,
        21,
        sky=((150, 190, 214), (238, 232, 214)),
        far=(176, 200, 206),
        near=(24, 70, 70),
        terraces=False,
        lake=True,
    )
    c.image((LEFT, y + 42, RIGHT, y + 132), view.crop((0, 318, 1100, 516)), 74)
    c.text(LEFT, y + 145, "松屏水库，2025 年 10 月雨后。", 8, THEME.muted)
    footnotes(
        c,
        LEFT,
        756,
        WIDTH,
        [
            "服务人口按 2025 年末常住人口计算。供水量为四座水厂出厂计量之和，不含向[[outside|青蓼县]]的应急调水 "
            "310 万立方米。"
        ],
        7.5,
    )


def _quality(c: Canvas) -> None:
    _head(c, 3)
    y = heading(c, LEFT, 62, "水质：我们喝的是什么", "检测结果")
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "每天早晨六点，化验员在四座水厂和 118 个管网监测点取样。下表是 2025 年全年的平均值，限值取自国家标准。",
        10.6,
        leading=1.7,
    )
    y += 8
    c.text(LEFT, y + 10, "表 1　主要指标全年平均值", 10, bold=True)
    rows = [
        ["指标", "单位", "限值", "出厂水", "管网末梢", "合格率"],
        ["浑浊度", "NTU", "1.0", "0.12", "0.23", "100%"],
        ["余氯", "mg/L", "0.05 以上", "0.62", "0.31", "99.96%"],
        ["总硬度", "mg/L", "450", "86", "88", "100%"],
        ["铁", "mg/L", "0.3", "0.02", "0.06", "99.91%"],
        ["硝酸盐氮", "mg/L", "10", "1.7", "1.7", "100%"],
        ["氟化物", "mg/L", "1.0", "0.24", "0.24", "100%"],
        ["菌落总数", "CFU/mL", "100", "1", "4", "99.98%"],
    ]
    y = table(c, LEFT, y + 20, [110, 70, 85, 78, 78, 78], rows, "quality", aligns="lcrrrr", size=10, pad=7)
    y += 26
    c.text(LEFT, y + 10, "图 1　水垢与口感：总硬度的比较（mg/L）", 10, bold=True)
    scale = (LEFT + 10, y + 34, RIGHT - 10, y + 62)
    bands = [
        ("软水", 0, 120, "#bfe3e4"),
        ("中等", 120, 250, "#8cc9e0"),
        ("较硬", 250, 450, "#4b8fbf"),
        ("超标", 450, 500, "#c8503c"),
    ]
    span = (scale[2] - scale[0]) / 500
    for name, low, high, colour in bands:
        c.rect((scale[0] + low * span, scale[1], scale[0] + high * span, scale[3]), fill=colour, stroke="#ffffff")
        c.text(
            scale[0] + (low + high) / 2 * span,
            scale[1] + 18,
            name,
            10,
            "#ffffff" if low >= 250 else THEME.ink,
            align="center",
        )
        c.text(scale[0] + high * span, scale[3] + 14, str(high), 8.5, THEME.muted, align="center")
    at = scale[0] + 86 * span
    c.arrow((at, scale[1] - 14), (at, scale[1] + 2), THEME.accent2, 2, 8)
    c.text(at + 8, scale[1] - 5, "云汀 86", 10, THEME.accent2, bold=True, mark="hardness")
    y += 104
    y = bullets(
        c,
        LEFT,
        y,
        WIDTH,
        [
            "云汀的水属于**软水**，烧水壶一般[[kettle|半年]]清洗一次即可。",
            "早晨第一杯水请先放流[[flush|三十秒]]，让夜里停在管中的水流走。",
            "水发白静置后变清，是溶解的空气，可以放心饮用。",
        ],
        10.6,
        7,
    )
    footnotes(
        c,
        LEFT,
        716,
        WIDTH,
        [
            "铁指标不合格的 [[iron|7 个]]水样全部来自 1985 年以前铺设的灰口铸铁管，相关管段已列入 2026 年更新计划。",
            "检测由集团水质中心完成，每季度由[[lab|汀南检测研究所]]复核一次；完整的 97 项结果可在营业厅查阅。",
        ],
        7.5,
    )


def _plants(c: Canvas) -> None:
    _head(c, 4)
    y = heading(c, LEFT, 62, "四座水厂", "生产")
    c.text(LEFT, y + 10, "图 2　设计能力与 2025 年日均产水（万立方米/日）", 10, bold=True)
    plants = ("松屏", "北塘", "柳岸", "白鹭滩")
    columns(
        c,
        (LEFT, y + 22, RIGHT, y + 230),
        "plants",
        plants,
        {"设计能力": (40, 30, 20, 12), "日均产水": (33.5, 24.8, 16.2, 3.9)},
        size=10,
        colours=("#9cc3dd", "#12588f"),
    )
    y += 250
    rows = [
        ["水厂", "投产年份", "水源", "处理工艺", "员工"],
        ["松屏水厂", "1996", "松屏水库", "常规处理＋活性炭", "86"],
        ["北塘水厂", "2011", "澜江", "常规处理＋臭氧活性炭", "74"],
        ["柳岸水厂", "1983", "澜江", "常规处理", "69"],
        ["白鹭滩水厂", "2004", "地下水（备用）", "除铁除锰", "22"],
    ]
    c.text(LEFT, y + 10, "表 2　水厂情况", 10, bold=True)
    y = table(c, LEFT, y + 20, [96, 78, 110, 155, 60], rows, "sites", aligns="lrllr", size=10, pad=6.5)
    y += 26
    c.text(LEFT, y + 10, "图 3　一滴水在松屏水厂的十一个小时", 10, bold=True)
    y += 26
    steps = [
        ("取水", "0 时"),
        ("混凝", "0.5 时"),
        ("沉淀", "3 时"),
        ("过滤", "5 时"),
        ("活性炭", "6.5 时"),
        ("消毒", "8 时"),
        ("清水池", "11 时"),
    ]
    wide, gap = 57.0, 16.6
    for i, (step, hour) in enumerate(steps):
        x = LEFT + i * (wide + gap)
        box(c, (x, y, x + wide, y + 40), step, fill=THEME.accent if i != 4 else THEME.accent2, size=11, bold=True)
        c.text(x + wide / 2, y + 58, hour, 9.5, THEME.muted, align="center", mark=f"steps/{step}")
        if i:
            c.arrow((x - gap + 2, y + 20), (x - 2, y + 20), THEME.accent2, 1.4, 5)
    y += 82
    x, top = panel(c, (LEFT, y, RIGHT, y + 84), "正在建设")
    c.paragraph(
        x,
        top,
        WIDTH - 28,
        "北塘水厂深度处理车间：总投资 [[invest|3.2 亿元]]，2024 年 10 月开工，计划 [[finish|2026 年 9 月]]通水。"
        "建成后日处理能力 30 万立方米，"
        "藻类季节的土霉味可去除九成以上。",
        10.4,
        leading=1.65,
    )
    footnotes(
        c,
        LEFT,
        758,
        WIDTH,
        ["柳岸水厂将于 2031 年关停，原址改建为[[park|供水博物馆]]与公园。白鹭滩水厂仅在备用水源启用时满负荷运行。"],
        7.5,
    )


def _losses(c: Canvas) -> None:
    _head(c, 5)
    y = heading(c, LEFT, 62, "把漏掉的水找回来", "管网")
    c.text(LEFT, y + 10, "图 4　管网漏损率", 10, bold=True)
    area = (LEFT, y + 20, RIGHT, y + 250)
    years = ("2019", "2020", "2021", "2022", "2023", "2024", "2025")
    with c.picture(area, 150, 86) as p:
        p.rect(area, fill="#ffffff", stroke=THEME.line)
        lines(
            p,
            (LEFT + 12, y + 30, RIGHT - 10, y + 246),
            "loss",
            years,
            {"漏损率": (14.2, 13.5, 12.9, 11.8, 10.5, 9.6, 8.7)},
            unit="%",
            size=10.5,
            area=True,
        )
    y += 270
    y = c.paragraph(
        LEFT,
        y,
        WIDTH,
        "2019 年以来漏损率连续六年下降。2025 年少漏的水约为 260 万立方米，相当于全市三天多的用水。"
        "下降最快的是老城区，那里更换了一半以上的灰口铸铁管。",
        10.6,
        leading=1.7,
    )
    y += 10
    c.text(LEFT, y + 10, "表 3　各营业所漏损率与更新管道", 10, bold=True)
    rows = [
        ["营业所", "2024 年", "2025 年", "更新管道（公里）", "传感器（个）"],
        ["老城", "13.1%", "10.2%", "52", "640"],
        ["滨湖", "8.8%", "8.1%", "21", "415"],
        ["北塘", "9.4%", "8.9%", "27", "388"],
        ["高新", "6.2%", "5.9%", "8", "290"],
        ["柳岸", "10.7%", "9.8%", "31", "352"],
        ["空港", "7.0%", "6.6%", "7", "205"],
    ]
    y = table(c, LEFT, y + 20, [105, 84, 84, 122, 104], rows, "offices", aligns="lrrrr", size=10, pad=6.5)
    bullets(
        c,
        LEFT,
        y + 18,
        WIDTH,
        [
            "夜间两点到四点用水量突然升高的小区，系统会自动派单。",
            "市民发现路面冒水并第一个报告，奖励[[reward|五立方米]]水费。",
        ],
        10.6,
        6,
    )
    footnotes(
        c, LEFT, 762, WIDTH, ["漏损率按国家规范修正后计算。传感器每 15 分钟上报一次，电池寿命约[[sensor|六年]]。"], 7.5
    )


def _tariff(c: Canvas) -> None:
    c.rect((34, 34, 561, 808), stroke="#333333", width=2)
    c.rect((40, 40, 555, 802), stroke="#333333", width=0.7)
    c.text(297.5, 96, "居民用水阶梯水价公告", 30, bold=True, align="center")
    c.text(297.5, 124, "自 2026 年 1 月 1 日起执行", 13, align="center")
    rows = [
        ["阶梯", "每户每年用水量", "水价（元/立方米）", "含污水处理费"],
        ["第一阶梯", "180 立方米及以下", "2.35", "3.30"],
        ["第二阶梯", "181 至 260 立方米", "3.20", "4.15"],
        ["第三阶梯", "261 立方米及以上", "5.75", "6.70"],
    ]
    y = table(c, 62, 152, [90, 150, 125, 106], rows, "tariff", aligns="lcrr", size=12.5, pad=10, head_fill="#4a4a4a")
    y += 30
    c.text(62, y + 12, "说明", 17, bold=True)
    y = bullets(
        c,
        62,
        y + 34,
        470,
        [
            "一户超过四口人的，每增加一人，各阶梯年用水量增加 [[person|45 立方米]]。",
            "低保家庭每月免费用水 [[free|6 立方米]]，由民政部门核定后自动减免。",
            "水表每两个月抄一次；账单在抄表后[[bill|十五天]]内缴清。",
            "水管爆裂造成的水量，经核实后按第一阶梯计费，每户每年限一次。",
        ],
        13,
        12,
    )
    y += 14
    c.rect((62, y, 533, y + 128), stroke="#333333", width=1)
    c.text(80, y + 34, "24 小时服务热线", 16, bold=True)
    c.text(512, y + 40, "0599-777-0160", 26, bold=True, align="right", mark="hotline")
    c.text(80, y + 72, "营业厅：滨湖路 18 号　周一至周六 8:30 至 17:00", 12.5, mark="office")
    c.text(80, y + 100, "更换水表、过户、报漏：手机搜索“云汀供水”", 12.5)
    c.paragraph(
        62,
        y + 152,
        470,
        "逾期缴费的，自逾期之日起每日加收应缴水费万分之五的违约金；"
        "逾期超过[[cutoff|六十天]]且经两次书面催告仍不缴纳的，可以暂停供水。"
        "用水性质改变而未申报的，按非居民水价 [[business|4.80 元]]追缴差额。",
        9.6,
        "#444444",
        leading=1.6,
    )
    c.text(533, 762, "云汀供水集团", 14, bold=True, align="right")
    c.text(533, 784, "2025 年 12 月 8 日", 12, align="right")
    c.circle((358, 752), 36, None, "#555555", 2.4)
    c.text(358, 757, "公 告", 13, "#555555", align="center")
