//! A model's chat template, rendered as transformers renders it.
//!
//! transformers uses Jinja2 with `trim_blocks`, `lstrip_blocks`, loop controls, a `tojson` of its own, `raise_exception` and
//! `strftime_now` (`_compile_jinja_template`). minijinja is Jinja2 but for what it prints of values that are no text; where
//! Python would print something else, rendering fails here, and the prompt is known by less.

use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::ValueKind};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json::{python_number, tojson};

const NAME: &str = "chat";

/// How a template wants the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// A list of parts, even where it is one text.
    Parts,
    /// One text, in which placeholders stand for images.
    Text,
}

/// A chat template, compiled.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    pub format: ContentFormat,
}

impl Template {
    /// # Errors
    ///
    /// A mistake in the template, or something that minijinja does not know.
    pub fn new(source: &str) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Bool => Ok(out.write_str(if value.is_true() { "True" } else { "False" })?),
            ValueKind::None => Ok(out.write_str("None")?),
            ValueKind::Number => {
                let text = python_number(value).ok_or_else(|| unprintable(value))?;
                Ok(out.write_str(&text)?)
            }
            ValueKind::String | ValueKind::Undefined => minijinja::escape_formatter(out, state, value),
            _ => Err(unprintable(value)),
        });
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_filter("tojson", |value: &Value, options: minijinja::value::Kwargs| tojson(value, options));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // The worker's clock and time zone are not known here.
        environment.add_function("strftime_now", |_: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "the prompt depends on the time"))
        });
        environment.add_template_owned(NAME, source.to_owned())?;
        Ok(Template { environment, format: format_of(source) })
    }

    /// The prompt as text.
    ///
    /// # Errors
    ///
    /// What the template refuses, and what it prints that Python would print otherwise.
    pub fn render(&self, variables: Value) -> Result<String, Error> {
        self.environment.get_template(NAME)?.render(variables)
    }
}

fn unprintable(value: &Value) -> Error {
    let kind = value.kind();
    Error::new(ErrorKind::InvalidOperation, format!("a {kind} is printed, which Python writes in its own way"))
}

/// vLLM's rule (`_detect_content_format`): parts, if there is a loop over the content of a message.
///
/// vLLM looks at the syntax tree. Here the loops' expressions are looked at as text, which comes to the same for templates
/// that loop over `message.content`, `message['content']` or a variable called `content`.
fn format_of(source: &str) -> ContentFormat {
    let blocks = source.split("{%").skip(1).filter_map(|rest| rest.split("%}").next());
    let is_loop_over_content = |block: &str| {
        let words = block.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let Some((_, over)) = words.strip_prefix("for ").and_then(|words| words.split_once(" in ")) else {
            return false;
        };
        // What is iterated over, without filters, conditions and slices.
        let over = over.split(['|']).next().unwrap_or(over);
        let over = over.split(" if ").next().unwrap_or(over).trim();
        let over =
            over.split_once(':').map_or(over, |(before, _)| before.rsplit_once('[').map_or(before, |(start, _)| start));
        over == "content" || [".content", "['content']", "[\"content\"]"].iter().any(|end| over.ends_with(end))
    };
    if blocks.into_iter().any(is_loop_over_content) { ContentFormat::Parts } else { ContentFormat::Text }
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    #[test]
    fn blocks_are_trimmed_and_values_printed_as_in_python() {
        let source = "{% for m in messages %}\n  {% if m.ok %}\n{{ m.ok }} {{ m.none }} {{ m.number }} {{ m.missing }}|\n  {% endif %}\n{% endfor %}\n{{ '<b>' }}{{ ' a b '.strip().split(' ')[1].startswith('b') }}\n";
        let template = Template::new(source).unwrap();
        let message = context! { ok => true, none => Value::from(()), number => 1.5 };
        let text = template.render(context! { messages => vec![message] }).unwrap();
        assert_eq!(text, "True None 1.5 |\n<b>True");
    }

    #[test]
    fn what_python_would_print_otherwise_fails() {
        for source in ["{{ [1] }}", "{{ {'a': 1} }}", "{{ strftime_now('%d') }}", "{{ raise_exception('no') }}"] {
            assert!(Template::new(source).unwrap().render(context! {}).is_err(), "{source}");
        }
        assert!(Template::new("{% generation %}x{% endgeneration %}").is_err());
    }

    #[test]
    fn a_loop_over_content_asks_for_parts() {
        for source in [
            "{%- for part in message.content -%}{% endfor %}",
            "{% for c in message['content'] | selectattr('type', 'equalto', 'image') %}",
            "{% for c in messages[0]['content'] if c.type == 'text' %}",
            "{% macro m(content) %}{% for item in content %}{% endfor %}{% endmacro %}",
            "{% for c in m.content[1:] %}",
        ] {
            assert_eq!(format_of(source), ContentFormat::Parts, "{source}");
        }
        for source in [
            "{% for message in messages %}{{ message.content }}{% endfor %}",
            "{% for m in messages[1:] %}{{ m['content'] | trim }}",
            "{% if message.content is string %}",
            "for x in message.content",
        ] {
            assert_eq!(format_of(source), ContentFormat::Text, "{source}");
        }
    }
}
