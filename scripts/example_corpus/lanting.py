"""Product deck of an invented tea house (Chinese, 16:9); the brewing guide is only a picture."""

from __future__ import annotations

from . import scenes
from .blocks import table
from .canvas import WIDE, Book, Canvas, Scan, Theme, mix
from .charts import columns, donut, keys

THEME = Theme(
    ink="#2b332a",
    muted="#737a6c",
    accent="#2f5d3a",
    accent2="#b5762a",
    line="#dcdfcf",
    soft="#f4f3e8",
    palette=("#2f5d3a", "#b5762a", "#8cab6a", "#d9c48f", "#8a8f80"),
    paper="#fdfcf6",
)
X0, X1 = 56.0, 904.0


def build() -> Book:
    book = Book("lanting_tea_deck_2025.pdf", "岚汀茶社 2025 产品手册", "岚汀茶社", THEME, WIDE)
    for draw in (_title, _products, _gardens, _process, _sales):
        draw(book.page())
    _brewing(book.page(Scan(paper=False, angle=0, noise=0.6, dpi=104, quality=72, colour=True, blur=0.3)))
    return book


def _slide(c: Canvas, title: str, number: int) -> None:
    c.text(X0, 76, title, 32, THEME.accent, bold=True)
    c.rect((X0, 92, X0 + 50, 96), fill=THEME.accent2)
    c.line((X0, 498), (X1, 498), THEME.line, 0.8)
    c.text(X0, 518, "岚汀茶社　2025 产品手册", 11, THEME.muted)
    c.text(X1, 518, str(number), 11, THEME.muted, align="right")


def _title(c: Canvas) -> None:
    c.image((0, 0, 960, 540), scenes.ridges(1200, 675, 11), 76)
    c.rect((0, 0, 352, 540), fill="#1f3d28", opacity=0.82)
    c.flush()
    c.text(X0, 186, "岚汀茶社", 50, "#ffffff", bold=True)
    c.rect((X0, 214, X0 + 56, 219), fill="#e0b25a")
    c.text(X0, 262, "2025 产品手册", 24, "#efe6c8")
    c.text(X0, 298, "山里的雾，杯里的春", 18, "#dfe8d8")
    c.text(X0, 490, "云汀市岚嶂山　·　始于 1958", 13, "#c5d6c2", mark="since")


def _products(c: Canvas) -> None:
    _slide(c, "五款茶", 2)
    rows = [
        ["茶名", "种类", "茶园海拔", "采摘时间", "发酵程度", "元/100 克"],
        ["岚雾毛尖", "绿茶", "860 米", "3 月 20 日至 4 月 5 日", "0", "168"],
        ["汀岸白露", "白茶", "640 米", "4 月上旬", "8%", "132"],
        ["半山乌龙", "青茶", "720 米", "5 月中旬", "35%", "116"],
        ["柴火红", "红茶", "580 米", "6 月", "92%", "98"],
        ["石库陈韵", "黑茶", "510 米", "8 月", "后发酵", "76"],
    ]
    y = table(c, X0, 122, [140, 86, 122, 222, 112, 166], rows, "teas", aligns="llrlrr", size=16, pad=12.5)
    c.paragraph(
        X0,
        y + 16,
        848,
        "零售价含税；企业订购满 50 公斤享[[discount|八五折]]，满 200 公斤享七八折。岚雾毛尖每人每日限购 "
        "[[limit|500 克]]。"
        "开封后请避光密封，绿茶宜冷藏，保质期 [[shelf|18 个月]]；黑茶适宜长期存放。",
        11,
        THEME.muted,
        leading=1.6,
    )


def _gardens(c: Canvas) -> None:
    _slide(c, "茶从哪里来", 3)
    c.rect((X0, 114, 610, 484), fill="#e7ecd8", radius=12)
    outline = [(104, 330), (150, 190), (280, 140), (430, 172), (540, 290), (470, 420), (300, 452), (170, 420)]
    for colour, scale in [("#d3deb9", 1.0), ("#bccf9c", 0.8), ("#a0ba7e", 0.58), ("#7f9f62", 0.34)]:
        c.blob([(330 + (x - 330) * scale, 262 + (y - 262) * scale) for x, y in outline], colour, "#ffffff", 1)
    c.curve([(590, 150), (520, 220), (506, 300), (540, 380), (520, 482)], "#78aac4", 5)
    c.polyline([(60, 462), (160, 440), (250, 470), (380, 466), (500, 440), (606, 452)], "#b79a6a", 2, "[6 4] 0")
    c.flush()
    c.text(524, 200, "澜江", 12, "#3f7796")
    c.text(70, 440, "汀南公路", 11, "#80683c")
    c.text(330, 262, "岚嶂山 1,147 米", 12, "#ffffff", bold=True, align="center", mark="peak")
    c.polygon([(330, 226), (340, 244), (320, 244)], "#ffffff")
    gardens = [
        ("云顶园", 352, 292, "420 亩"),
        ("松涛园", 188, 234, "310 亩"),
        ("竹溪园", 412, 366, "280 亩"),
        ("石库园", 196, 382, "190 亩"),
    ]
    for name, x, y, area in gardens:
        c.circle((x, y), 8, THEME.accent2, "#ffffff", 2)
        c.text(x + 14, y + 1, name, 14, bold=True, mark=f"garden/{name}")
        c.text(x + 14, y + 17, area, 11, mark=f"area/{name}")
    c.text(640, 140, "四片茶园", 20, THEME.accent, bold=True)
    rows = [
        ["茶园", "面积", "主要茶树", "负责人"],
        ["云顶园", "420 亩", "本地群体种", "周砚秋"],
        ["松涛园", "310 亩", "大白茶", "沈渡"],
        ["竹溪园", "280 亩", "水仙", "白若溪"],
        ["石库园", "190 亩", "大叶种", "顾长庚"],
    ]
    y = table(c, 640, 156, [58, 60, 82, 64], rows, "gardens", size=12.5, pad=7)
    c.paragraph(640, y + 18, 264, "全部茶园 1,200 亩，不用除草剂。杂草由[[geese|六百只鹅]]负责。", 14, leading=1.6)
    c.paragraph(640, y + 74, 264, "雾日每年 [[fog|174 天]]，是平原的三倍。", 14, leading=1.6)


def _process(c: Canvas) -> None:
    _slide(c, "半山乌龙的三十小时", 4)
    steps = [
        ("采摘", "一芽三叶", "上午", "#8cab6a"),
        ("晒青", "25 ℃", "1 小时", "#a9bf6a"),
        ("摇青", "五次", "10 小时", "#c9b64e"),
        ("杀青", "260 ℃", "6 分钟", "#cf8a3a"),
        ("包揉", "十二遍", "3 小时", "#a5673a"),
        ("烘焙", "85 ℃", "14 小时", "#7c4a2c"),
    ]
    wide, gap = 118.0, 28.0
    for i, (name, how, time, colour) in enumerate(steps):
        x = X0 + i * (wide + gap)
        middle = x + wide / 2
        c.circle((middle, 200), 52, colour)
        if i:
            c.arrow((x - gap - 4, 200), (x + 4, 200), THEME.accent2, 2, 9)
        c.text(middle, 208, name, 22, "#ffffff", bold=True, align="center")
        c.text(middle, 286, how, 16, bold=True, align="center", mark=f"how/{name}")
        c.text(middle, 310, time, 14, THEME.muted, align="center", mark=f"time/{name}")
    c.rect((X0, 344, X1, 472), fill=THEME.soft, radius=12)
    c.text(X0 + 24, 378, "为什么要摇？", 18, THEME.accent, bold=True)
    c.paragraph(
        X0 + 24,
        392,
        800,
        "摇动让叶缘轻轻受伤，细胞里的酶遇到空气开始发酵，叶边变红而叶心仍绿，茶人叫它“绿叶红镶边”。"
        "最后一次摇青在[[shake|凌晨三点]]，"
        "由值夜的师傅凭香气决定何时停下，花香转为果香便立刻杀青。",
        14.5,
        leading=1.65,
    )


def _sales(c: Canvas) -> None:
    _slide(c, "谁在喝岚汀", 5)
    c.text(X0, 128, "2025 年销售渠道（%）", 15, bold=True)
    channels = {"直营店": 34.0, "网上商城": 29.0, "茶馆与餐厅": 21.0, "企业礼品": 11.0, "出口": 5.0}
    donut(c, (196, 300), 104, "channels", channels, size=14, fmt=lambda v: f"{v:.0f}%", middle=("4,860", "万元"))
    keys(c, 342, 234, list(channels), size=14, leading=2.3)
    c.text(506, 128, "各款茶销量（吨）", 15, bold=True)
    columns(
        c,
        (506, 140, X1, 470),
        "tons",
        ("毛尖", "白露", "乌龙", "柴火红", "陈韵"),
        {"2024": (9.2, 7.5, 15.8, 12.1, 6.4), "2025": (9.6, 10.3, 16.4, 11.2, 7.9)},
        colours=("#d9c48f", "#2f5d3a"),
        size=12,
        fmt=lambda v: f"{v:.1f}",
        bar=0.8,
    )
    c.text(X0, 486, "注：出口主要销往三个国家的茶馆，2025 年首次超过 200 万元。销量不含试饮装。", 10, THEME.muted)


def _brewing(c: Canvas) -> None:
    _slide(c, "怎样泡一杯好茶", 6)
    teas = [
        ("岚雾毛尖", "80 度", "3 克", "45 秒", "#9dbb63"),
        ("汀岸白露", "90 度", "4 克", "60 秒", "#d8c27a"),
        ("半山乌龙", "98 度", "7 克", "20 秒", "#cf9a3c"),
        ("柴火红", "95 度", "5 克", "30 秒", "#b5562c"),
        ("石库陈韵", "100 度", "8 克", "15 秒", "#5c3524"),
    ]
    wide, gap = 158.0, 14.5
    for i, (name, heat, dose, time, colour) in enumerate(teas):
        x = X0 + i * (wide + gap)
        middle = x + wide / 2
        c.rect((x, 116, x + wide, 398), fill=THEME.soft, radius=12)
        c.polygon(
            [(middle - 44, 140), (middle + 44, 140), (middle + 30, 190), (middle - 30, 190)], "#ffffff", "#c9c6b4", 1.5
        )
        c.polygon([(middle - 40, 152), (middle + 40, 152), (middle + 29, 188), (middle - 29, 188)], colour)
        c.rect((middle - 36, 192, middle + 36, 198), fill="#c9c6b4", radius=3)
        c.text(middle, 232, name, 18, bold=True, align="center")
        for k, (label, value) in enumerate([("水温", heat), ("投茶", dose), ("第一泡", time)]):
            y = 270 + k * 42
            c.text(x + 22, y, label, 13.5, THEME.muted)
            c.text(
                x + wide - 20,
                y,
                value,
                18,
                mix(colour, "#000000", 0.35),
                bold=True,
                align="right",
                mark=f"brew/{name}/{label}",
            )
    c.paragraph(
        X0,
        414,
        848,
        "以 150 毫升盖碗为准，之后每泡延长十秒。水宜软：总硬度不超过 [[soft|120 mg/L]] 时茶汤最亮；"
        "硬水请先煮沸两分钟再放凉。"
        "绿茶可泡[[green|三次]]，乌龙可泡七次，陈韵可泡十二次以上。空腹与睡前不宜饮浓茶。",
        14,
        leading=1.6,
    )
    c.text(X1, 96, "水温以入碗时为准", 12, THEME.muted, align="right")
