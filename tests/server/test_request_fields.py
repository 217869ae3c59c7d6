"""Fields beyond the common ones, over HTTP, on a real engine where numbers matter."""

from tests.server.conftest import StartServer
from tests.server.test_real_engine import make_engine

MODEL = "alias"
GREEDY = {"temperature": 0, "max_tokens": 4}
MESSAGES = [{"role": "user", "content": "hi"}]


async def test_logit_bias_decides_what_is_said(start_server: StartServer) -> None:
    server = await start_server(make_engine(num_kv_blocks=64))
    bias = {str(ord("x")): 100}
    completion = await server.openai.completions.create(
        model=MODEL, prompt="hi", logit_bias=bias, **GREEDY
    )
    assert completion.choices[0].text == "xxxx"
    chat = await server.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, logit_bias=bias, **GREEDY
    )
    assert chat.choices[0].message.content == "xxxx"
