"""The file that `equipoise config` prints: every setting, its default and what it means."""

import inspect
import json

from equipoise.experiment.config import NAMES, SECTIONS, parse


def template() -> str:
    start = parse({})
    parts = ["# Every setting and its default. Delete what you do not change."]
    parts.append(f'name = "{start.name}"  # of the run folder')
    for key in ("data", "partition", "model", "objective", "algorithm", "run"):
        section = getattr(start, key)
        parts.append(f"\n[{key}]" + (f"  # {inspect.getdoc(SECTIONS[key])}" if key in SECTIONS else ""))
        if key in NAMES:
            parts.append(f"# one of {', '.join(NAMES[key])}")
        for name, field in type(section).model_fields.items():
            value = "auto" if field.default == "auto" else getattr(section, name)
            line = f"# {name} = ..." if value is None else f"{name} = {json.dumps(value)}"  # of such values, TOML too
            parts.append(line + (f"  # {field.description}" if field.description else ""))
    for key in ("convexify", "federation", "privacy", "personal"):
        optional = SECTIONS[key]
        parts.append(f"\n# [{key}]  # {inspect.getdoc(optional)}")
        for name, field in optional.model_fields.items():
            start_value = "..." if field.is_required() or field.default is None else json.dumps(field.default)
            parts.append(f"# {name} = {start_value}  # {field.description}")
    parts.append(COMPARE_HELP)
    return "\n".join(parts)


COMPARE_HELP = """
# Several methods on one federation, for `equipoise compare`: each table holds settings of [algorithm], what
# [algorithm] says above and the method knows too is inherited; objective = {...} gives it another objective,
# model, convexify and run = {...} other settings of those sections.
# [compare.DRFA]
# name = "drfa"
# dual_lr = 0.01

# Many runs, for `equipoise sweep`: all combinations of the grid, the best by a measure, over several seeds.
# [sweep]
# seeds = [0, 1, 2]
# measure = "worst20"          # mean, worst20, best20, min, std, ...
# [sweep.grid]
# "algorithm.local_lr" = [0.01, 0.1]
"""
