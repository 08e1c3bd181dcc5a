import tomllib

from equipoise.experiment import config, reading


def test_the_template_is_the_defaults():
    assert config.parse(tomllib.loads(reading.template())) == config.parse({})


def test_the_template_names_every_setting():
    text = reading.template()
    for section in config.SECTIONS.values():
        for name in section.model_fields:
            assert f"{name} = " in text
