"""A program that stands for a server in the tests of the benchmarks.

    fake_server.py http PORT     completions of `max_tokens` tokens, at once
    fake_server.py worker        the same through its input and output
    fake_server.py broken        tells why on standard error and ends

The text of an answer tells its prompt; with a further argument, the text also tells that.
"""

import asyncio
import json
import sys
import time

from aiohttp import web


def answer(prompt: list[int], extra: list[str]) -> str:
    return f"{sum(prompt)}{''.join(extra)}"


async def serve(port: int, extra: list[str]) -> None:
    async def health(request: web.Request) -> web.Response:
        return web.Response()

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            choice = {"text": answer(body["prompt"], extra), "finish_reason": None}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def work() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        now_s = time.perf_counter()
        results = [
            {
                "start_s": now_s,
                "times_s": [now_s + 0.01 * (i + 1) for i in range(order["output_len"])],
                "token_ids": [sum(prompt)] * order["output_len"],
            }
            for prompt in order["prompts"]
        ]
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["http", port, *extra]:
            asyncio.run(serve(int(port), extra))
        case ["worker"]:
            work()
        case _:
            sys.exit("no such model")
