"""Chat templates, against transformers' own rendering."""

import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pyengine.text.chat_template import ChatTemplate, ChatTemplateError

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INSTRUCT = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system + '\n\n' if system is defined and loop.first else '') }}
        {{- message['content'] | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
TOOLS = """\
{%- if tools is not none %}
    {{- "Tools:\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
        {{- "\\n" }}
    {%- endfor %}
{%- endif %}
{% set ns = namespace(count=0) %}
{% for message in messages %}
    {% if message.role == 'tool' %}{% continue %}{% endif %}
    {% set ns.count = ns.count + 1 %}
    {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}
    {% else %}
{{ ns.count }}. {{ message.role }}: {{ message | tojson }}
    {% endif %}
    {% if ns.count == 3 %}{% break %}{% endif %}
{% endfor %}
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
"""
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be <brief> & kind"}, {"role": "user", "content": " Hé 😀\n"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "'three' \"quoted\""},
    ],
]


@pytest.mark.parametrize("source", [CHATML, INSTRUCT, TOOLS], ids=["chatml", "instruct", "tools"])
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["one", "system", "three"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("kwargs", [{}, {"tools": [WEATHER], "enable_thinking": False}])
def test_renders_as_transformers_does(
    source: str,
    messages: list[dict[str, Any]],
    add_generation_prompt: bool,
    kwargs: dict[str, Any],
) -> None:
    (expected,), _ = render_jinja_template(
        [messages],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
        **kwargs,
    )
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert (
        template.render(messages, add_generation_prompt=add_generation_prompt, **kwargs) == expected
    )


@pytest.mark.parametrize("source", [CHATML, INSTRUCT], ids=["chatml", "instruct"])
@pytest.mark.parametrize("content", ["Sure", " Sure, ", "", "user", "<|im_end|>"])
def test_a_last_message_is_continued_as_transformers_does(source: str, content: str) -> None:
    messages = [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": content}]
    (expected,), _ = render_jinja_template(
        [messages],
        chat_template=source,
        continue_final_message=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    rendered = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected


def test_a_last_message_that_the_template_strips_is_continued_without_its_spaces() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
    messages = [{"role": "user", "content": " a "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert template.render(messages, **options) == "[a"


def test_a_last_message_that_the_template_leaves_out_cant_be_continued() -> None:
    with pytest.raises(ChatTemplateError, match="leaves the last message out"):
        ChatTemplate("a").render(
            [{"role": "user", "content": "b"}],
            add_generation_prompt=False,
            continue_final_message=True,
        )


def test_the_date_is_given_to_templates_that_ask() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}")
    assert abs(int(template.render([])) - datetime.date.today().year) <= 1


def test_a_refusal_carries_the_templates_words() -> None:
    template = ChatTemplate(INSTRUCT)
    with pytest.raises(ChatTemplateError, match="failed: Roles must alternate user/assistant"):
        template.render([{"role": "assistant", "content": "Hello"}])


def test_a_failure_within_a_template_is_its_own_error() -> None:
    template = ChatTemplate(CHATML)
    with pytest.raises(ChatTemplateError, match="the chat template failed: can only concatenate"):
        template.render([{"role": "user", "content": None}])


def test_a_broken_template_is_refused_with_its_line() -> None:
    with pytest.raises(ChatTemplateError, match=r"broken in line 2: .*unknown tag 'fi'"):
        ChatTemplate("{% if messages %}\n{% fi %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.items() }}",
    ],
)
def test_templates_can_neither_reach_python_nor_change_the_conversation(source: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "Hello"}]
