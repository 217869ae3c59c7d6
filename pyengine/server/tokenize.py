"""POST /tokenize and /detokenize."""

from aiohttp import web

from pyengine.server.answers import Detokenized, Tokenized
from pyengine.server.body import read_body
from pyengine.server.context import ENGINE
from pyengine.server.prompts import decode_tokens, encode_conversation, encode_text
from pyengine.server.protocol import DetokenizeBody, TokenizeBody
from pyengine.server.respond import check_model
from pyengine.server.tools import check_tools_reach_model


async def tokenize(request: web.Request) -> web.Response:
    body = await read_body(request, TokenizeBody)
    check_model(request.app, body.model)
    if body.messages is not None:
        check_tools_reach_model(request.app, body)
        prompt = await encode_conversation(request.app, body.conversation(body.messages))
        token_ids = prompt.token_ids
    else:
        token_ids = await encode_text(
            request.app, body.prompt or "", add_special_tokens=body.add_special_tokens
        )
    answer: Tokenized = {
        "tokens": token_ids,
        "count": len(token_ids),
        "max_model_len": request.app[ENGINE].max_model_len,
    }
    return web.json_response(answer)


async def detokenize(request: web.Request) -> web.Response:
    body = await read_body(request, DetokenizeBody)
    check_model(request.app, body.model)
    text = await decode_tokens(request.app, body.tokens)
    answer: Detokenized = {"prompt": text}
    return web.json_response(answer)
