"""OpenVINO GenAI for `compare`: runs in OpenVINO's environment, and takes loads from its input.

    python openvino_worker.py MODEL [--precision bf16] [--num-kv-blocks N]

OpenVINO GenAI has no HTTP server, so this process drives its continuous batching itself. It prints
"ready"; then for each line of input, {"prompts": token ids of each request, "concurrency": how many
are kept open, "output_len": tokens to generate}, it prints a line: a list with, for each request,
{"start_s", "times_s": of each token (time.perf_counter), "token_ids"}.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

BLOCK_SIZE = 32  # tokens in a block of OpenVINO's KV cache on CPUs
KV_CACHE_GIB = 1


class Worker:
    def __init__(self, model: str, precision: str, num_threads: int, num_kv_blocks: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        if num_kv_blocks:
            scheduler.num_kv_blocks = num_kv_blocks
        else:
            scheduler.cache_size = KV_CACHE_GIB
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 2048
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model,
            scheduler,
            "CPU",
            {"INFERENCE_NUM_THREADS": num_threads, "INFERENCE_PRECISION_HINT": precision},
        )
        self._next_id = 0

    def run(
        self, prompts: list[list[int]], concurrency: int, output_len: int
    ) -> list[dict[str, Any]]:
        """Generates for each prompt, `concurrency` of them at a time; the fields are above."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        waiting = list(prompts)
        results: list[dict[str, Any]] = []
        running: list[tuple[Any, dict[str, Any]]] = []
        while waiting or running:
            while waiting and len(running) < concurrency:
                ids = openvino.Tensor(np.array([waiting.pop(0)], dtype=np.int64))
                results.append({"start_s": time.perf_counter(), "times_s": [], "token_ids": []})
                handle = self._pipeline.add_request(self._next_id, ids, config)
                self._next_id += 1
                running.append((handle, results[-1]))
            self._pipeline.step()
            now_s = time.perf_counter()
            for handle, result in running:
                while handle.can_read():
                    for output in handle.read().values():
                        result["token_ids"] += output.generated_ids
                        result["times_s"] += [now_s] * len(output.generated_ids)
            running = [
                (handle, result)
                for handle, result in running
                if len(result["token_ids"]) < output_len
            ]
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="a GGUF file or a folder of OpenVINO's")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--num-kv-blocks", type=int, default=0, help=f"of {BLOCK_SIZE} tokens")
    args = parser.parse_args()
    worker = Worker(args.model, args.precision, args.num_threads, args.num_kv_blocks)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
