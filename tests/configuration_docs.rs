//! docs/CONFIGURATION.md is what the code says: run with `UPDATE_DOCS=1` to write it anew.

use clap::CommandFactory;
use mediagate::config::Cli;

const HEAD: &str = "# Configuration

Every setting is a flag, an environment variable and a key of the TOML file that `--config` (`MEDIAGATE_CONFIG`) names.
A flag goes before the variable, the variable before the file, the file before the default. In the file a setting is
called as its flag without the dashes (`arena-bytes = \"2GiB\"`, `worker = [\"http://10.0.0.1:8000\"]`,
`frontend-decoding = true`); what can be given several times is a list there, and separated by commas in the variable.
Sizes take units (`64MiB`, `1GB`); times are in milliseconds. A setting that makes no sense, alone or beside another,
ends the start with a sentence that says what to do.

They stand in groups here, as in `mediagate --help`. Most gateways need `--worker`, `--frontend-decoding`, `--listen`,
`--attach-key-file`, `--nixl-lib-dir` and `--api-key-file`, and no other. `mediagate inspect` takes those that begin with
`media-`.
";

const TABLE: &str = "
| flag | variable | default | what it is |
| --- | --- | --- | --- |
";

fn reference() -> String {
    let command = Cli::command();
    let mut text = HEAD.to_owned();
    let mut section = None;
    for argument in command.get_arguments().filter(|argument| argument.get_env().is_some()) {
        let (Some(flag), Some(variable)) = (argument.get_long(), argument.get_env()) else { continue };
        // Those of a group stand together, the general ones first.
        let heading = argument.get_help_heading().unwrap_or("In general");
        if section != Some(heading) {
            text += &format!("\n## {heading}\n{TABLE}");
            section = Some(heading);
        }
        let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        // Defaults that depend on the machine, or that are the absence of something, stand in the help text.
        let mut default = if defaults.is_empty() { String::new() } else { format!("`{}`", defaults.join(",")) };
        if let Some((before, stated)) = help.split_once(" [default: ") {
            default = stated.trim_end_matches(']').to_owned();
            help = before.to_owned();
        }
        let variable = variable.to_string_lossy();
        text += &format!("| `--{flag}` | `{variable}` | {default} | {} |\n", help.replace('|', "\\|"));
    }
    text
}

#[test]
fn the_configuration_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/CONFIGURATION.md");
    let reference = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &reference).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == reference,
        "docs/CONFIGURATION.md is not current: run `UPDATE_DOCS=1 cargo test --test configuration_docs`"
    );
}

#[test]
fn the_files_to_deploy_set_what_there_is_to_set() {
    let read =
        |name: &str| std::fs::read_to_string(format!("{}/launch/deploy/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let manifest = read("kubernetes.yaml");
    let (_, rest) = manifest.split_once("  mediagate.toml: |\n").unwrap();
    let in_manifest: String =
        rest.lines().map_while(|line| line.strip_prefix("    ")).flat_map(|l| [l, "\n"]).collect();
    for settings in [read("mediagate.toml"), in_manifest] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &settings).unwrap();
        let words = ["mediagate", "--config", file.path().to_str().unwrap()].map(Into::into);
        let cli = Cli::read(words).unwrap_or_else(|error| panic!("{error}\n{settings}"));
        cli.serve.validate().unwrap_or_else(|error| panic!("{error}\n{settings}"));
        assert!(cli.serve.images.frontend_decoding);
    }
}
