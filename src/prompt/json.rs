//! JSON as Python's `json.dumps` writes it, which is what templates with `tojson` put before the model.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

/// The filter `tojson` of transformers: `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) || options.has("separators") {
        return Err(Error::new(ErrorKind::InvalidOperation, "an option of tojson that is not followed here"));
    }
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer { out: String::new(), indent, sort_keys };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Deeper than any tool's schema, and not as deep as the stack.
const MAX_DEPTH: usize = 100;

struct Writer {
    out: String,
    indent: Option<usize>,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let unknown = || Error::new(ErrorKind::InvalidOperation, "a value that Python would not write as JSON");
        if depth > MAX_DEPTH {
            return Err(unknown());
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value).ok_or_else(unknown)?,
            ValueKind::String => self.string(value.as_str().ok_or_else(unknown)?),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(items.len(), depth, ['[', ']'], |this, index| this.value(&items[index], depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(keys.len(), depth, ['{', '}'], |this, index| {
                    this.string(keys[index].as_str().ok_or_else(unknown)?);
                    this.out.push_str(": ");
                    this.value(&value.get_item(&keys[index])?, depth + 1)
                })?;
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn list(
        &mut self,
        count: usize,
        depth: usize,
        brackets: [char; 2],
        mut item: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        for index in 0..count {
            match (index, self.indent) {
                (0, None) => {}
                (_, None) => self.out.push_str(", "),
                (0, Some(_)) => self.line(depth + 1),
                (_, Some(_)) => {
                    self.out.push(',');
                    self.line(depth + 1);
                }
            }
            item(self, index)?;
        }
        if count > 0 && self.indent.is_some() {
            self.line(depth);
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        self.out.push('\n');
        let width = self.indent.unwrap_or(0) * depth;
        self.out.extend(std::iter::repeat_n(' ', width));
    }

    fn number(&mut self, value: &Value) -> Option<()> {
        let text = python_number(value)?;
        self.out.push_str(&text);
        Some(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                // Writing to a String cannot fail.
                c if c < ' ' => drop(write!(self.out, "\\u{:04x}", u32::from(c))),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python's `repr` writes it, where Rust's digits are the same: both are the shortest that read back.
pub fn python_number(value: &Value) -> Option<String> {
    if value.is_integer() {
        return Some(value.to_string());
    }
    let number = f64::try_from(value.clone()).ok()?;
    // Outside, Python writes exponents, and for what is no number it writes words.
    let plain = number == 0.0 || (1e-4..1e16).contains(&number.abs());
    plain.then(|| format!("{number:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(json: &str, options: Kwargs) -> Result<String, Error> {
        tojson(&serde_json::from_str::<Value>(json).unwrap(), options)
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let json = r#"{"b": [1, 2.0, -0.5, true, null, {}], "a": {"x": "é\"\\\n\u0001<>&'"}, "e": []}"#;
        let none = || Kwargs::from_iter(Vec::<(&str, Value)>::new());
        let plain = dumped(json, none()).unwrap();
        assert_eq!(plain, r#"{"b": [1, 2.0, -0.5, true, null, {}], "a": {"x": "é\"\\\n\u0001<>&'"}, "e": []}"#);
        let indented = dumped(r#"{"b":[1,{}],"a":2}"#, Kwargs::from_iter([("indent", Value::from(2))])).unwrap();
        assert_eq!(indented, "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": 2\n}");
        let sorted = dumped(r#"{"b":1,"a":2}"#, Kwargs::from_iter([("sort_keys", Value::from(true))])).unwrap();
        assert_eq!(sorted, r#"{"a": 2, "b": 1}"#);
        assert_eq!(dumped("[12345678901234567890, 0.0001]", none()).unwrap(), "[12345678901234567890, 0.0001]");
    }

    #[test]
    fn what_would_be_written_otherwise_is_an_error() {
        let none = || Kwargs::from_iter(Vec::<(&str, Value)>::new());
        for json in ["1e300", "1e-9", &format!("{}{}", "[".repeat(110), "]".repeat(110))] {
            assert!(dumped(json, none()).is_err(), "{json}");
        }
        assert!(dumped("1", Kwargs::from_iter([("ensure_ascii", Value::from(true))])).is_err());
        assert!(dumped("1", Kwargs::from_iter([("separators", Value::from("x"))])).is_err());
    }
}
