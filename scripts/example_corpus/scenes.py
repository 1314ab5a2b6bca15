"""Photo-like pictures, computed: skies, sea, ridges in mist, a city at dusk, a device, laboratory glass."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

Array = np.ndarray
Colour = tuple[int, int, int]


def gradient(width: int, height: int, stops: list[tuple[float, Colour]]) -> Array:
    """A vertical gradient through colour stops (position 0..1, colour); float32 of shape (height, width, 3)."""
    at = np.linspace(0, 1, height)
    positions = [p for p, _ in stops]
    channels = [np.interp(at, positions, [c[k] for _, c in stops]) for k in range(3)]
    return np.repeat(np.stack(channels, -1)[:, None, :], width, 1).astype(np.float32)


def clouds(width: int, height: int, rng: np.random.Generator, stretch: float = 3.0) -> Array:
    """Fractal noise in 0..1, shape (height, width), stretched sideways."""
    total, weight = np.zeros((height, width), np.float32), 0.0
    for octave in range(2, 8):
        cells = 2**octave
        noise = rng.random((cells, max(2, int(cells / stretch * width / height))), dtype=np.float32)
        layer = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
        total += np.asarray(layer) / cells
        weight += 1 / cells
    return np.clip(total / weight, 0, 1)


def glow(width: int, height: int, x: float, y: float, radius: float) -> Array:
    """A soft light at (x, y) in shares of the picture, shape (height, width, 1)."""
    yy, xx = np.mgrid[0:height, 0:width].astype(np.float32)
    distance = np.hypot(xx - x * width, yy - y * height)
    return np.exp(-((distance / (radius * width)) ** 1.3))[..., None]


def ridge(width: int, rng: np.random.Generator, rough: float = 0.5) -> Array:
    """A skyline in -1..1, one value per column."""
    total = np.zeros(width)
    for octave in range(1, 9):
        knots = rng.uniform(-1, 1, 2**octave + 2)
        total += np.interp(np.linspace(0, 2**octave, width), np.arange(len(knots)), knots) * rough**octave
    return total / np.abs(total).max()


def finish(pixels: Array, rng: np.random.Generator, grain: float = 2.5) -> Image.Image:
    pixels = pixels + rng.normal(0, grain, (*pixels.shape[:2], 1))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def wind_farm(width: int = 900, height: int = 1100, seed: int = 1) -> Image.Image:
    """Turbines on a calm sea before sunrise."""
    rng = np.random.default_rng(seed)
    horizon = int(height * 0.62)
    sky = gradient(
        width, horizon, [(0, (24, 52, 92)), (0.5, (78, 122, 156)), (0.8, (226, 176, 150)), (1, (252, 216, 168))]
    )
    sky += (clouds(width, horizon, rng)[..., None] - 0.5) * np.linspace(30, 75, horizon)[:, None, None]
    sky += glow(width, horizon, 0.7, 0.97, 0.24) * np.array([60, 42, 12])
    sea = gradient(width, height - horizon, [(0, (214, 176, 152)), (0.12, (98, 128, 150)), (1, (14, 38, 64))])
    ripple = clouds(width, height - horizon, rng, stretch=9)[..., None] - 0.5
    sea += ripple * np.linspace(20, 90, height - horizon)[:, None, None]
    sea += glow(width, height - horizon, 0.7, 0.0, 0.16) * np.array([80, 50, 15]) * (ripple * 3 + 1)
    image = finish(np.concatenate([sky, sea]), rng, 2)
    big = image.resize((width * 2, height * 2), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(big)
    for x, scale, turn in [
        (0.1, 0.2, 10),
        (0.23, 0.24, 70),
        (0.4, 0.3, 35),
        (0.62, 0.46, 95),
        (0.86, 0.34, 20),
        (0.95, 0.22, 50),
    ]:
        _turbine(draw, x * width * 2, horizon * 2 + scale * 90, scale * height * 1.5, turn, scale)
    return big.resize((width, height), Image.Resampling.LANCZOS)


def _turbine(draw: ImageDraw.ImageDraw, x: float, foot: float, tall: float, turn: float, nearness: float) -> None:
    shade = int(235 - 60 * (1 - nearness))
    body = (shade, shade, shade + 6)
    w = tall * 0.014
    draw.polygon([(x - w, foot), (x + w, foot), (x + w * 0.5, foot - tall), (x - w * 0.5, foot - tall)], fill=body)
    draw.polygon(
        [
            (x - w * 1.4, foot),
            (x + w * 1.4, foot),
            (x + w * 1.2, foot - tall * 0.06),
            (x - w * 1.2, foot - tall * 0.06),
        ],
        fill=(232, 178, 52),
    )
    hub = (x, foot - tall)
    for k in range(3):
        a = math.radians(turn + 120 * k)
        tip = (hub[0] + math.cos(a) * tall * 0.58, hub[1] + math.sin(a) * tall * 0.58)
        side = (-math.sin(a) * w * 1.1, math.cos(a) * w * 1.1)
        near = (hub[0] + math.cos(a) * tall * 0.12, hub[1] + math.sin(a) * tall * 0.12)
        draw.polygon(
            [hub, (near[0] + side[0], near[1] + side[1]), tip, (near[0] - side[0] * 0.4, near[1] - side[1] * 0.4)],
            fill=body,
        )
    draw.ellipse(
        (hub[0] - w * 1.3, hub[1] - w * 1.3, hub[0] + w * 1.3, hub[1] + w * 1.3),
        fill=(shade - 20, shade - 20, shade - 14),
    )


def ridges(
    width: int,
    height: int,
    seed: int,
    sky: tuple[Colour, Colour] = ((196, 216, 214), (250, 236, 214)),
    far: Colour = (176, 200, 196),
    near: Colour = (28, 66, 48),
    layers: int = 6,
    terraces: bool = True,
    lake: bool = False,
) -> Image.Image:
    """Mountain ridges in morning mist, with tea terraces on the nearest slope or a lake at their foot."""
    rng = np.random.default_rng(seed)
    shore = int(height * 0.7) if lake else height
    pixels = gradient(width, shore, [(0, sky[0]), (0.55, sky[1]), (1, sky[1])])
    pixels += glow(width, shore, 0.72, 0.22, 0.2) * np.array([60, 48, 20])
    pixels += (clouds(width, shore, rng)[..., None] - 0.5) * 24
    rows = np.arange(shore)[:, None]
    for k in range(layers):
        depth = k / (layers - 1)
        colour = np.array(far) * (1 - depth) + np.array(near) * depth
        line = shore * (0.3 + (0.42 if not lake else 0.58) * depth) + ridge(width, rng) * shore * (0.14 - 0.06 * depth)
        below = rows >= line[None, :]
        drop = np.clip((rows - line[None, :]) / (shore * 0.28), 0, 1)[..., None]
        mist = np.array(sky[1]) * 0.35 * (1 - depth) + colour * (1 - 0.35 * (1 - depth))
        layer = colour * (1 - drop) + mist * drop + (clouds(width, shore, rng, 1)[..., None] - 0.5) * (14 + 30 * depth)
        if terraces and k >= layers - 2:
            wave = np.sin((rows - line[None, :]) / shore * 150 + ridge(width, rng)[None, :] * 2.5)
            layer = layer + (wave[..., None] > 0.1) * np.array([14, 30, 8]) * (0.6 + 0.6 * depth)
        pixels = np.where(below[..., None], layer, pixels)
    if lake:
        mirror = pixels[::-1][: height - shore] * 0.72 + np.array([10, 40, 62]) * 0.28
        mirror = mirror + (clouds(width, height - shore, rng, 9)[..., None] - 0.5) * 60
        pixels = np.concatenate([pixels, mirror])
    return finish(pixels, rng, 3)


def city(width: int = 900, height: int = 620, seed: int = 3) -> Image.Image:
    """A waterfront at dusk with lit windows and a tram on the quay."""
    rng = np.random.default_rng(seed)
    quay = int(height * 0.72)
    sky = gradient(
        width, quay, [(0, (36, 44, 92)), (0.5, (122, 88, 138)), (0.85, (240, 154, 112)), (1, (252, 198, 134))]
    )
    sky += (clouds(width, quay, rng)[..., None] - 0.5) * 50
    image = finish(sky, rng, 2)
    draw = ImageDraw.Draw(image)
    for layer, (low, high, tone) in enumerate(
        [(0.28, 0.55, (96, 72, 116)), (0.16, 0.42, (54, 46, 86)), (0.08, 0.28, (28, 28, 58))]
    ):
        x = -10
        while x < width:
            wide, tall = int(rng.integers(26, 64)), int(height * rng.uniform(low, high))
            top = quay - tall
            draw.rectangle((x, top, x + wide, quay), fill=tone)
            if rng.random() < 0.25:
                draw.polygon([(x, top), (x + wide, top), (x + wide / 2, top - wide * 0.6)], fill=tone)
            if layer:
                for wy in range(top + 6, quay - 8, 11):
                    for wx in range(x + 5, x + wide - 6, 9):
                        if rng.random() < 0.42:
                            warm = int(rng.integers(0, 50))
                            draw.rectangle((wx, wy, wx + 4, wy + 5), fill=(255, 214 - warm, 130 - warm))
            x += wide + int(rng.integers(0, 10))
    draw.rectangle((0, quay - 16, width, quay), fill=(40, 38, 54))
    for k in range(3):
        left = 90 + k * 124
        draw.rounded_rectangle((left, quay - 48, left + 120, quay - 12), 9, fill=(232, 92, 52))
        for w in range(4):
            draw.rounded_rectangle(
                (left + 8 + w * 28, quay - 42, left + 30 + w * 28, quay - 26), 3, fill=(255, 238, 190)
            )
        draw.line((left + 60, quay - 48, left + 60, quay - 60), fill=(30, 30, 40), width=3)
    draw.line((0, quay - 60, width, quay - 60), fill=(30, 30, 40), width=2)
    mirror = image.crop((0, 2 * quay - height, width, quay)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    mirror = mirror.resize((width, height - quay)).filter(ImageFilter.GaussianBlur(2.5))
    pixels = np.concatenate(
        [np.asarray(image, np.float32), np.asarray(mirror, np.float32) * 0.62 + np.array([12, 16, 38])]
    )
    ripple = clouds(width, height - quay, rng, 9)[..., None] - 0.5
    pixels[quay:] += ripple * 55
    return finish(pixels, rng, 2)


def device(width: int = 800, height: int = 640, seed: int = 4) -> Image.Image:
    """The Mossly monitor: a matt puck with a ring of light, on a violet backdrop."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:height, 0:width].astype(np.float32)
    pixels = gradient(
        width, height, [(0, (44, 34, 82)), (0.66, (98, 72, 150)), (0.68, (58, 42, 98)), (1, (30, 22, 60))]
    )
    pixels += glow(width, height, 0.5, 0.42, 0.42) * np.array([70, 50, 80])
    cx, cy, r = width * 0.5, height * 0.46, height * 0.33
    shadow = np.exp(-(((xx - cx) / (r * 1.15)) ** 2 + ((yy - height * 0.83) / (r * 0.16)) ** 2))
    pixels *= 1 - 0.75 * shadow[..., None]
    radius = np.hypot(xx - cx, yy - cy) / r
    light = np.clip(1.05 - 0.45 * ((xx - cx) / r + (yy - cy) / r) * 0.7 - 0.25 * radius**2, 0, 1.3)[..., None]
    body = np.array([226, 224, 232]) * light
    edge = np.clip((1 - radius) * r / 2, 0, 1)[..., None]
    pixels = pixels * (1 - edge) + body * edge
    face = np.clip((0.74 - radius) * r / 2, 0, 1)[..., None]
    pixels = pixels * (1 - face) + np.array([36, 34, 48]) * (0.8 + 0.35 * light) * face
    halo = np.exp(-(((radius - 0.82) / 0.035) ** 2))[..., None]
    pixels += halo * np.array([-60, 70, -20])
    return finish(pixels, rng, 2)


def glassware(width: int = 800, height: int = 700, seed: int = 5) -> Image.Image:
    """Flasks with coloured liquids in front of an unsharp laboratory."""
    rng = np.random.default_rng(seed)
    back = Image.fromarray(
        gradient(
            width, height, [(0, (188, 206, 214)), (0.75, (226, 232, 232)), (0.76, (122, 134, 142)), (1, (84, 94, 104))]
        ).astype(np.uint8)
    )
    draw = ImageDraw.Draw(back)
    for _ in range(26):
        x, y, r = rng.uniform(0, width), rng.uniform(0, height * 0.6), rng.uniform(14, 52)
        tone = tuple(int(v) for v in rng.integers(190, 255, 3))
        draw.ellipse((x - r, y - r, x + r, y + r), fill=tone)
    for x in range(-40, width, 160):
        draw.rectangle((x, height * 0.2, x + 120, height * 0.34), fill=(150, 164, 176))
    back = back.filter(ImageFilter.GaussianBlur(16)).resize((width * 2, height * 2))
    for x, base, scale, liquid in [
        (0.22, 0.9, 0.8, (66, 148, 204)),
        (0.53, 0.94, 1.1, (232, 158, 44)),
        (0.8, 0.9, 0.72, (96, 178, 112)),
    ]:
        _flask(back, x * width * 2, base * height * 2, scale * height * 1.1, liquid)
    return finish(np.asarray(back.resize((width, height), Image.Resampling.LANCZOS), np.float32), rng, 2.5)


def _flask(image: Image.Image, x: float, foot: float, tall: float, liquid: Colour) -> None:
    half, neck = tall * 0.36, tall * 0.09
    glass = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(glass)
    shoulder = foot - tall * 0.62

    def wide(y: float) -> float:
        return neck + (half - neck) * (y - shoulder) / (foot - shoulder)

    outline = [
        (x - neck, foot - tall),
        (x + neck, foot - tall),
        (x + neck, shoulder),
        (x + half, foot),
        (x - half, foot),
        (x - neck, shoulder),
    ]
    draw.ellipse((x - half * 1.1, foot - 14, x + half * 1.1, foot + 22), fill=(30, 36, 44, 90))
    draw.polygon(outline, fill=(235, 245, 250, 70))
    level = foot - tall * 0.3
    draw.polygon(
        [(x - wide(level), level), (x + wide(level), level), (x + half, foot), (x - half, foot)], fill=(*liquid, 215)
    )
    draw.ellipse(
        (x - wide(level), level - 12, x + wide(level), level + 12),
        fill=(*(min(255, v + 45) for v in liquid), 235),
    )
    draw.line([*outline, outline[0]], fill=(240, 248, 252, 190), width=7, joint="curve")
    draw.line(
        [(x - half * 0.62, foot - tall * 0.08), (x - neck * 0.6, shoulder + tall * 0.05)],
        fill=(255, 255, 255, 170),
        width=12,
    )
    draw.rounded_rectangle(
        (x - neck * 1.35, foot - tall - 14, x + neck * 1.35, foot - tall + 12), 10, fill=(240, 248, 252, 220)
    )
    image.paste(glass, (0, 0), glass)
