"""OpenAI's completions, chat, models and responses."""
