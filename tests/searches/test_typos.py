"""A typo in the name of any option, wherever options are written: each is refused, with the name that was meant."""

import itertools
import random

import pytest

from equipoise.errors import InputError
from equipoise.experiment import config, plan, reading
from tests.searches import tiny

NEEDED = {"federation": {"sites": 3}, "privacy": {"epsilon": 1.0}}  # or something is missing, which is said first


def bases():
    """(section, its settings to begin with, the names of its options), for every section that a file may have."""
    for section, of in config.SECTIONS.items():
        yield section, {section: NEEDED.get(section, {})}, list(of.model_fields)
    for name in config.ALGORITHMS:
        algorithm = {"algorithm": {"name": name}}
        yield "algorithm", algorithm, list(config.section_of("algorithm", name).model_fields)
    for name in config.OBJECTIVES:
        objective = {"objective": {"name": name}}
        yield "objective", objective, list(config.section_of("objective", name).model_fields)
    yield "algorithm.rule", {"algorithm": {"name": "scaffpd"}}, list(config.RuleSettings.model_fields)
    yield "algorithm.optimizer", {"algorithm": {"name": "fedavg"}}, list(config.OptimizerSettings.model_fields)
    for part in ("algorithm", "objective"):
        fields = list(config.section_of(part, config.STAGE_1_NAMES[part]).model_fields)
        yield f"convexify.{part}", {"model": {"name": "mlp"}, "convexify": {}}, fields


def typos(name, chance):
    """A letter too few, too many, another one, or two in the wrong order; none is another option's name."""
    at = chance.randrange(max(len(name) - 1, 1))
    yield name[:at] + name[at + 1 :] if len(name) > 1 else name * 2
    yield name[:at] + 2 * name[at] + name[at + 1 :]
    yield name[:at] + chance.choice("qxz") + name[at + 1 :]
    if len(name) > 1 and name[at] != name[at + 1]:
        yield name[:at] + name[at + 1] + name[at] + name[at + 2 :]


def refused(act, typo, name):
    with pytest.raises(InputError) as caught:
        act()
    said = str(caught.value)
    assert f"'{typo}'" in said or f".{typo}'" in said, said
    assert "\n" not in said
    assert name in said, said  # as the nearest one, or among those that are known
    if len(name) > 3:
        assert "did you mean" in said, said


def every_typo():
    chance = random.Random(0)
    for section, base, names in bases():
        for name in names:
            others = [typo for typo in typos(name, chance) if typo not in names]
            for typo in chance.sample(others, min(len(others), tiny.LONGER)):
                yield section, base, typo, name


def test_in_a_file_and_with_set():
    for section, base, typo, name in every_typo():
        refused(lambda s=section, b=base, t=typo: config.parse(put(b, f"{s}.{t}", 1)), typo, name)
        told = [f"{section}.{typo}=1"]
        refused(lambda b=base, t=told: config.parse(reading.override(b, t)), typo, name)


def test_in_the_grids_of_a_sweep():
    for section, base, typo, name in itertools.islice(every_typo(), 0, None, 3 if tiny.LONGER == 1 else 1):
        for grid in ("grid", "over"):
            sweep = {"sweep": {grid: {f"{section}.{typo}": [1, 2]}}}
            refused(lambda b=base, s=sweep: plan.sweep(b | s), typo, name)


def test_in_the_tables_of_a_comparison_and_in_their_grids():
    """With `make test` every third option: each of them is looked up by what the tests above look all up by."""
    apart = 3 if tiny.LONGER == 1 else 1
    for section, base, typo, name in itertools.islice(every_typo(), 0, None, apart):
        first, _, rest = section.partition(".")
        method = {"name": "fedavg", "local_lr": 0.1} if first != "algorithm" else dict(base["algorithm"])
        if first in ("objective", *plan.OWN_SECTIONS):
            own = method | ({first: base[first]} if base[first] else {})
            mine = put(own, f"{section}.{typo}", 1)
            refused(lambda m=mine: plan.compare({"compare": {"A": m}}), typo, name)
        elif first == "algorithm":
            mine = put(method, f"{rest}.{typo}" if rest else typo, 1)
            refused(lambda m=mine: plan.compare({"compare": {"A": m}}), typo, name)
        wide = {key: value for key, value in base.items() if key not in ("algorithm", "objective")}
        compared = method | ({"objective": base["objective"]} if first == "objective" else {})
        for shared in (False, True):
            grid = {f"{section}.{typo}": [1, 2]}
            two = {"A": compared | ({} if shared else {"grid": grid}), "B": {**compared, "steps": 3}}
            two = two if "steps" in config.section_of("algorithm", method["name"]).model_fields else {"A": two["A"]}
            settings = wide | {"compare": two} | ({"sweep": {"grid": grid}} if shared else {})
            refused(lambda s=settings: plan.sweep(s), typo, name)


@pytest.mark.parametrize("name", [*plan.Sweep.model_fields, *config.KEYS])
def test_of_sections_and_of_a_sweep(name):
    for typo in typos(name, random.Random(1)):
        if name in config.KEYS and typo not in config.KEYS:
            refused(lambda t=typo: config.parse({t: {}}), typo, name)
        if name in plan.Sweep.model_fields and typo not in plan.Sweep.model_fields:
            refused(lambda t=typo: plan.sweep({"sweep": {t: [1]}}), typo, name)


def put(settings, key, value):
    out = reading.override(settings, [])
    *sections, last = key.split(".")
    table = out
    for section in sections:
        table = table.setdefault(section, {})
    table[last] = value
    return out
