//! `mediagate config show`: every setting as it is in effect, as the TOML file that would say so.

use std::fmt::Write;

use clap::{ArgMatches, Command, parser::ValueSource};

/// A line for each setting, with where it comes from. `in_file` has the ids of those that the file sets.
pub(super) fn effective(command: &Command, matches: &ArgMatches, in_file: &[String]) -> String {
    let mut text = String::new();
    for argument in command.get_arguments().filter(|argument| argument.get_env().is_some()) {
        let id = argument.get_id().as_str();
        let key = argument.get_long().unwrap_or(id);
        let values: Vec<_> =
            matches.get_raw(id).into_iter().flatten().map(|value| literal(&value.to_string_lossy())).collect();
        let line = match (values.as_slice(), argument.get_action()) {
            ([], _) => format!("# {key} is not set"),
            (values, clap::ArgAction::Append) => format!("{key} = [{}]", values.join(", ")),
            (values, _) => format!("{key} = {}", values.join(", ")),
        };
        let source = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "  # from the command line",
            Some(ValueSource::EnvVariable) => "  # from the environment",
            Some(ValueSource::DefaultValue) if in_file.iter().any(|set| set == id) => "  # from the file",
            _ => "",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}{source}");
    }
    text
}

/// A value as TOML has it.
fn literal(value: &str) -> String {
    let bare = value.parse::<i64>().is_ok() || value.parse::<bool>().is_ok();
    if bare { value.to_owned() } else { toml::Value::from(value).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Cli;
    use clap::CommandFactory;

    #[test]
    fn what_is_shown_is_a_file_that_says_the_same() {
        let words = ["mediagate", "--worker", "http://a:1", "--worker", "http://b:1", "--arena-bytes", "1GiB"];
        let matches = Cli::command().try_get_matches_from(words).unwrap();
        let text = effective(&Cli::command(), &matches, &["frontend_decoding".to_owned()]);
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["worker"].as_array().unwrap().len(), 2);
        assert_eq!(table["arena-bytes"].as_str(), Some("1GiB"));
        assert_eq!(table["frontend-decoding"].as_bool(), Some(false));
        assert!(text.contains("arena-bytes = \"1GiB\"  # from the command line\n"), "{text}");
        assert!(text.contains("frontend-decoding = false  # from the file\n"), "{text}");
        assert!(text.contains("# api-key-file is not set\n"), "{text}");
    }
}
