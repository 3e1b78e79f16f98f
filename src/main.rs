//! Command line to running server.

use std::process::ExitCode;

use mediagate::{
    config::{Cli, Command, ConfigCommand, ConfigError, Findings},
    inspect,
    observe::panics,
    serve, warm,
};

fn main() -> ExitCode {
    panics::log_contained();
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(ConfigError::Arguments(error)) => error.exit(),
        Err(error) => return fail(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let result = match cli.command {
        Some(Command::Inspect(arguments)) => runtime.block_on(inspect::run(*arguments)),
        #[cfg(feature = "mm-routing")]
        Some(Command::Prompt(arguments)) => runtime.block_on(mediagate::predict::run(*arguments)),
        Some(Command::Warm(arguments)) => runtime.block_on(warm::run(arguments)),
        Some(Command::Config(arguments)) if matches!(arguments.command, ConfigCommand::Check) => {
            let findings = Findings::of(&cli.serve);
            print!("{}", findings.report());
            findings.outcome().map_err(Into::into)
        }
        Some(Command::Config(_)) => {
            print!("{}\n{}", cli.shown, cli.serve.budgets());
            cli.serve.validate().map_err(Into::into)
        }
        None => runtime.block_on(serve::run(cli.serve)),
    };
    // NIXL's threads and decoders that are still at work must not hold up the end.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("mediagate: {error}");
    ExitCode::FAILURE
}
