"""From seconds, bytes and ratios to what people read. Nothing else converts units."""

from __future__ import annotations

import datetime
import math

#: Shown where a figure is absent.
ABSENT = "-"
#: Stands behind a percentile whose sample is too small for it.
THIN = "*"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds; infinite and absent values become None."""
    if seconds is None or not math.isfinite(seconds):
        return None
    return seconds * 1000.0


def ms_text(seconds: float | None, thin: bool = False) -> str:
    """``28.6``, ``1,665``: milliseconds without the unit; ``∞`` for a failure."""
    if seconds is None:
        return ABSENT
    if math.isinf(seconds):
        return "∞"
    return number(seconds * 1000.0) + (THIN if thin else "")


def duration_text(seconds: float | None) -> str:
    """``28.6 ms``, ``1.67 s``, ``2 min 5 s``."""
    if seconds is None:
        return ABSENT
    if seconds < 1.0:
        return f"{number(seconds * 1000.0)} ms"
    if seconds < 120.0:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def number(value: float | None) -> str:
    """Three significant digits, whole numbers from 100 on, thousands apart."""
    if value is None or math.isnan(value):
        return ABSENT
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    digits = 1 if size >= 9.995 else 2
    if size < 0.0995:
        digits = 3
    return f"{value:.{digits}f}"


def count_text(value: float | None) -> str:
    """A whole number with thousands apart; a fraction keeps one decimal."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def percent_text(ratio: float | None) -> str:
    """``98.4 %`` from 0.984; 100 % is only said of a whole."""
    if ratio is None:
        return ABSENT
    if ratio in (0.0, 1.0):
        return f"{ratio * 100:.0f} %"
    return f"{min(ratio * 100, 99.9) if ratio < 1 else ratio * 100:.1f} %"


def signed(value: float) -> str:
    """``+8.3``, ``-1,200``: one decimal, or none from 100 on; never a signed zero."""
    text = f"{value:+,.0f}" if abs(value) >= 99.95 else f"{value:+.1f}"
    return text.lstrip("+-") if not text.strip("+-0.,") else text


def bytes_text(value: float | None) -> str:
    """``15.6 MiB``: binary units, three significant digits."""
    if value is None:
        return ABSENT
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(_BINARY) - 1:
        size /= 1024
        unit += 1
    return f"{number(size)} {_BINARY[unit]}" if unit else f"{size:,.0f} B"


def byte_scale(largest: float) -> tuple[float, str]:
    """Divisor and name of the binary unit that suits an axis up to ``largest`` bytes."""
    unit = 0
    while largest >= 1024 and unit < len(_BINARY) - 1:
        largest /= 1024
        unit += 1
    return float(1024**unit), _BINARY[unit]


def level_text(level: float) -> str:
    """A level without a trailing ``.0``."""
    return f"{level:g}"


def utc_text(wall_s: float) -> str:
    """``2026-01-01 00:00 UTC`` from seconds since the epoch."""
    return datetime.datetime.fromtimestamp(wall_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def without_folder(text: str) -> str:
    """The last part of an absolute path: a report must not show where a model lies."""
    if text.startswith(("/", "~")) or (len(text) > 2 and text[1:3] in (":\\", ":/")):
        return text.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or text
    return text
