"""Values as text for terminals. rich is imported here and nowhere else; nothing here prints."""
