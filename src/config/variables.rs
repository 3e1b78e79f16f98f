//! Environment variables that look like settings and are none: a name with a slip in it would change nothing, and say nothing.

use clap::CommandFactory;

use super::Cli;

/// What the plugin on a worker is set by: on one machine both may be started from one environment.
const OF_WORKERS: [&str; 3] = ["MEDIAGATE_GRANT_BYTES", "MEDIAGATE_LEASE_SECONDS", "MEDIAGATE_GRACE_SECONDS"];

/// Those of the process, in order.
pub fn unknown_variables() -> Vec<String> {
    unknown_among(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn unknown_among(names: impl Iterator<Item = String>) -> Vec<String> {
    let command = Cli::command();
    let is_known = |name: &str| command.get_arguments().any(|setting| setting.get_env().is_some_and(|env| env == name));
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with("MEDIAGATE_") && !is_known(name))
        .filter(|name| !OF_WORKERS.contains(&name.as_str()) && !is_of_kubernetes(name))
        .collect();
    unknown.sort();
    unknown
}

/// Kubernetes tells a container of each service: NAME_SERVICE_HOST, NAME_SERVICE_PORT_HTTP, NAME_PORT, NAME_PORT_80_TCP_ADDR.
fn is_of_kubernetes(name: &str) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.split_once("_PORT_").is_some_and(|(_, rest)| rest.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_with_a_slip_in_its_name_is_found_and_those_of_others_are_left_alone() {
        let names = [
            "MEDIAGATE_FRONTEND_DECODE",
            "MEDIAGATE_FRONTEND_DECODING",
            "MEDIAGATE_WORKERS",
            "MEDIAGATE_CONFIG",
            "MEDIAGATE_LEASE_SECONDS",
            "MEDIAGATE_LANDING_BYTES",
            "MEDIAGATE_SERVICE_HOST",
            "MEDIAGATE_SERVICE_PORT_HTTP",
            "MEDIAGATE_PORT",
            "MEDIAGATE_PORT_80_TCP_ADDR",
            "MEDIAGATE_ADMIN_PORT_9090_TCP",
            "PATH",
        ];
        let unknown = unknown_among(names.into_iter().map(str::to_owned));
        assert_eq!(unknown, ["MEDIAGATE_FRONTEND_DECODE", "MEDIAGATE_WORKERS"]);
    }
}
