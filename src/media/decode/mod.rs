//! Encoded image bytes to RGB8 pixels, equal to those of vLLM.
