"""The OpenAI-compatible HTTP server: `app.create_app` makes it, `serve.run` runs it."""
