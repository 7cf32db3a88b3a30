"""Rules of model families: from a config's fields to its layers, one small table each."""

from __future__ import annotations

from harness.kv.families import classic, decoder, encdec, hybrid, latent, windowed
from harness.kv.families.base import Family

#: by ``model_type``
FAMILIES: dict[str, Family] = {
    **decoder.FAMILIES,
    **classic.FAMILIES,
    **windowed.FAMILIES,
    **hybrid.FAMILIES,
    **latent.FAMILIES,
    **encdec.FAMILIES,
}
