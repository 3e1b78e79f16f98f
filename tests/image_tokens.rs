//! Image token counts against those of transformers, in the table that tests/e2e/image_tokens.py writes and checks.

#![cfg(feature = "mm-routing")]

use mediagate::model::{ImageTokens, ModelFiles};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Row {
    model: String,
    config: Value,
    image_processor: Option<Value>,
    /// Height, width, tokens.
    counts: Vec<(u32, u32, usize)>,
}

#[test]
fn image_tokens_are_those_of_transformers() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("data/image_tokens.json")).unwrap();
    let mut counted = 0;
    for Row { model, config, image_processor, counts } in rows {
        let tokens = ImageTokens::new(&ModelFiles { config, image_processor, ..ModelFiles::default() })
            .unwrap_or_else(|error| panic!("{model}: {error}"));
        let wrong: Vec<_> = counts
            .iter()
            .filter(|&&(height, width, expected)| tokens.count(height, width) != Ok(expected))
            .map(|&(height, width, expected)| (height, width, expected, tokens.count(height, width)))
            .collect();
        assert!(
            wrong.is_empty(),
            "{model}: {} of {} (height, width, expected, counted): {wrong:?}",
            wrong.len(),
            counts.len()
        );
        counted += counts.len();
    }
    assert!(counted > 1000, "only {counted} sizes");
}
