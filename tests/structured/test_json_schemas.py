"""Whatever a model would like to say, what it says by a JSON schema is valid."""

import json

import jsonschema

from pyengine.sampling_params import Grammar, SamplingParams
from tests.engine.harness import Harness, prompt_of
from tests.structured.schemas import Schema, SchemaGenerator

NUM_SCHEMAS = 200
# Blank space is allowed between tokens, and a model that draws at random would fill in much.
LESS_BLANK_SPACE = {ord(character): -20.0 for character in " \n\t"}


def test_outputs_of_200_schemas_parse_and_are_valid() -> None:
    generator = SchemaGenerator(seed=5)
    schemas: dict[str, Schema] = {}
    while len(schemas) < NUM_SCHEMAS:
        schema = generator.draw()
        schemas[json.dumps(schema)] = schema
    harness = Harness(num_kv_blocks=8192, max_num_seqs=64, max_num_batched_tokens=512)
    ids = {}
    for number, (text, schema) in enumerate(schemas.items()):
        params = SamplingParams(
            grammar=Grammar("json_schema", text),
            temperature=3,
            seed=number,
            max_tokens=800,
            logit_bias=LESS_BLANK_SPACE,
        )
        ids[harness.add(prompt_of(5, number), params)] = schema
    num_finished = 0
    for request_id, output in harness.run().items():
        [choice] = output.outputs
        if choice.finish_reason == "length":
            continue
        num_finished += 1
        schema, value = ids[request_id], json.loads(choice.text)
        jsonschema.validate(
            value,
            schema,
            cls=jsonschema.Draft202012Validator,
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )
    assert num_finished >= 0.95 * NUM_SCHEMAS
