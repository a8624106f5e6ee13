"""An HTTP server with llama.cpp's, OpenAI's, Anthropic's and Ollama's API, on the engine.

    app = make_app(ServedModel(engine, options))        # an ASGI application; see docs/server.md

The command is ``pyllama-server``. Needs the extra ``server``; nothing else imports this package.
"""
