import tomllib

from equipoise.experiment import config, template


def test_the_template_is_the_defaults():
    assert config.parse(tomllib.loads(template.template())) == config.parse({})


def test_the_template_names_every_setting():
    text = template.template()
    for section in config.SECTIONS.values():
        for name in section.model_fields:
            assert f"{name} = " in text
