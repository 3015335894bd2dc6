"""Forms: what follows a turn is filled in only where a template does nothing with contents but write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.chat.forms import Forms
from toolrl.types import Message

pytest.importorskip("jinja2")

START = "<|im_end|>\n{% for m in messages %}<|{{ m.role }}|>\n"
END = "<|im_end|>\n{% endfor %}"
PLAIN = START + "{{ m.content }}" + END

WRITES = {
    "written": PLAIN,
    "joined by +": START + "{{ '<' + m.content + '>' }}" + END,
    "through a variable": START + "{% set text = m.content %}{{ text }}" + END,
    "taken as true": START + "{% if m.content %}{{ m.content }}{% else %}nothing{% endif %}" + END,
    "known to be a string": START + "{% if m.content is string %}{{ m.content }}{% endif %}" + END,
    "the concatenation is written": START + "{{ '<' ~ m.content ~ '>' }}" + END,
    "looked at for another role": START
    + "{% if m.role == 'user' and m.content.startswith('x') %}{% endif %}{{ m.content }}"
    + END,
}
LOOKS = {
    "trimmed": "{{ m.content | trim }}",
    "stripped": "{{ m.content.strip() }}",
    "as JSON": "{{ m.content | tojson }}",
    "searched": "{% if '<think>' in m.content %}T{% endif %}{{ m.content }}",
    "looked for": "{% if m.content in 'abc' %}T{% endif %}{{ m.content }}",
    "compared": "{% if m.content == 'ok' %}T{% endif %}{{ m.content }}",
    "compared from the left": "{% if 'ok' == m.content %}T{% endif %}{{ m.content }}",
    "found in a list": "{% if m.content in ['ok'] %}T{% endif %}{{ m.content }}",
    "measured": "{% if m.content | length > 9 %}T{% endif %}{{ m.content }}",
    "split": "{{ m.content.split('x')[0] }}",
    "indexed": "{{ m.content[0] }}{{ m.content }}",
    "gone through": "{% for c in m.content %}{{ c }}{% endfor %}",
    "formatted": "{{ '%s' % m.content }}",
    "escaped": "{{ m.content | e }}",
    "a number": "{{ m.content | int }}{{ m.content }}",
    "a key": "{{ {'a': 1}.get(m.content) }}{{ m.content }}",
    "kept, then looked at": "{% set t %}{{ m.content }}{% endset %}{% if t[0] == '1' %}T{% endif %}{{ t }}",
    "joined, then looked at": "{% set t = m.content ~ '' %}{% if t[0] == '1' %}T{% endif %}{{ t }}",
    "through a macro": "{% macro w(x) %}{{ x }}{% endmacro %}{{ w(m.content) | upper }}",
    "written twice": "{{ m.content }}{{ m.content }}",
    "an argument of a method": "{% if '12'.startswith(m.content) %}T{% endif %}{{ m.content }}",
    "repeated": "{{ m.content * 2 }}",
    "replaced in another": "{{ '12ok' | replace(m.content, '') }}{{ m.content }}",
    "put into another": "{% set t = 'X' | replace('X', m.content) %}{% if t[0] == '1' %}T{% endif %}{{ t }}",
    "a title": "{% if m.content | title == 'Ok' %}T{% endif %}{{ m.content }}",
    "JSON, then looked at": "{% set t = m.content | tojson %}{% if t[1] == '1' %}T{% endif %}{{ m.content }}",
    "JSON of what holds it": "{% if ({'a': [m.content]} | tojson)[8] == '1' %}T{% endif %}{{ m.content }}",
    "JSON of each": "{% if ([m.content] | map('tojson') | first)[1] == '1' %}T{% endif %}{{ m.content }}",
    "tested to be in a text": "{% if m.content is in 'abc1' %}T{% endif %}{{ m.content }}",
    "selected by a text": "{% if messages | rejectattr('content', 'in', '123') | list %}{% else %}T{% endif %}"
    "{{ m.content }}",
    "through a recursive loop": "{% for x in [m] recursive %}{% if x.last %}{{ x.content }}{% else %}"
    "{% set t = loop([{'content': m.content, 'last': true}]) %}{% if t[0] == '1' %}T{% endif %}{{ t }}"
    "{% endif %}{% endfor %}",
}


def _forms(template: str) -> tuple[Forms, list[str]]:
    """The forms of a template, and what was rendered for real."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    real = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    real.filters["tojson"] = __import__("json").dumps
    rendered: list[str] = []

    def after_turn(messages, render):  # type: ignore[no-untyped-def]
        dicts = [{"role": message.role, "content": message.content} for message in messages]
        if render is not None:
            return render(dicts, None, generation_prompt=True)
        text = real.from_string(template).render(messages=dicts, add_generation_prompt=True)
        rendered.append(text)
        return text

    return Forms(template, {}, after_turn, lambda text: text.startswith("<|im_end|>")), rendered


def _answers(*contents: str) -> list[Message]:
    return [Message("tool", text, name="add", tool_call_id=f"call_{n}") for n, text in enumerate(contents)]


@pytest.mark.parametrize("name", WRITES)
@settings(deadline=None)  # Finding a form renders often, and a loaded machine is slow at it.
@given(contents=st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_a_form_gives_what_rendering_gives(name: str, contents: list[str]) -> None:
    forms, rendered = _forms(WRITES[name])
    forms.fill(_answers(*["x"] * len(contents)))
    filled = forms.fill(_answers(*contents))
    assert filled is not None
    forms._after_turn(_answers(*contents), None)
    assert filled == rendered[-1]


def test_a_form_is_found_the_second_time_and_then_nothing_is_rendered() -> None:
    forms, rendered = _forms(PLAIN)
    assert forms.fill(_answers("1")) is None
    assert forms.fill(_answers("2")) == "<|im_end|>\n<|tool|>\n2<|im_end|>\n"
    count = len(rendered)
    assert [forms.fill(_answers(str(number))) is not None for number in range(50)] == [True] * 50
    assert len(rendered) == count


@pytest.mark.parametrize("name", LOOKS)
def test_a_template_that_looks_at_contents_has_no_form(name: str) -> None:
    forms, _ = _forms(START + LOOKS[name] + END)
    assert [forms.fill(_answers("1")) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("source", [None, "{% if", "{{ raise_exception('no') }}", "no mark {{ messages[0].content }}"])
def test_no_form_where_there_is_no_such_template(source: str | None) -> None:
    forms, _ = _forms(source or "")
    forms = forms if source is not None else Forms(None, {}, lambda messages, render: "", lambda text: True)
    assert [forms.fill(_answers("1")) for _ in range(3)] == [None] * 3


def test_empty_contents_and_other_roles_are_rendered() -> None:
    forms, _ = _forms(PLAIN)
    for message in (Message("tool", ""), Message("assistant", "x"), Message("system", "x")):
        assert [forms.fill([message]) for _ in range(3)] == [None] * 3
    assert forms.fill([]) is None
