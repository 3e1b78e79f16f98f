//! `mediagate config check`: everything that would end the start or surprise later, with what to do about it.

use bytesize::ByteSize;

use super::{ConfigError, ServeArgs, files, unknown_variables};
use crate::{
    memory::limits,
    model::Models,
    server::tenant::Tenancy,
    worker::{Registry, WorkerClient},
};

/// What a check has found.
#[derive(Debug, Default)]
pub struct Findings {
    /// With these it does not start.
    pub errors: Vec<String>,
    /// With these it starts, and may not do what is meant.
    pub warnings: Vec<String>,
}

impl Findings {
    /// Checks settings and the files that they name. Nothing is bound, and nobody is connected to.
    pub fn of(args: &ServeArgs) -> Self {
        let mut findings = Findings::default();
        findings.note(args.validate());
        findings.note(files::api_keys(args).map(drop));
        findings.note(files::worker_authorization(args).map(drop));
        findings.note(files::attach_secret(args).map(drop));
        if let (Some(cert), Some(key)) = (&args.listening.tls_cert, &args.listening.tls_key) {
            findings.note(crate::server::tls::read(cert, key).map_err(files::FileError::Tls));
        }
        findings.note(WorkerClient::new(args.fleet.worker_ca_file.as_deref()).map_err(files::FileError::Client));
        findings.note(Models::read(&args.routing.model_paths));
        match args.fleet.worker_urls() {
            Ok(urls) => {
                let registry = Registry::new(&urls, args.fleet.settings()).map_err(files::FileError::Worker);
                if let Some(registry) = findings.note(registry) {
                    findings.look_at_workers(args, &registry);
                }
            }
            Err(error) => findings.errors.push(error.to_string()),
        }
        let slips = unknown_variables().into_iter();
        findings.warnings.extend(slips.map(|name| format!("{name} is no setting: look for a slip in its name")));
        findings.look_at_access(args);
        findings.look_at_memory(args);
        findings
    }

    fn note<T, E: std::fmt::Display>(&mut self, outcome: Result<T, E>) -> Option<T> {
        outcome.map_err(|error| self.errors.push(error.to_string())).ok()
    }

    fn look_at_workers(&mut self, args: &ServeArgs, registry: &Registry) {
        let workers = registry.all();
        // Where there is no such file either, that is an error.
        if workers.is_empty() && args.fleet.workers_file.is_some() {
            self.warnings.push("--workers-file names no worker: every request gets 503 until one is added".into());
        }
        let remote = workers.iter().find(|worker| !worker.base().is_loopback());
        if let Some(worker) = remote
            && args.images.frontend_decoding
            && args.transfer.attach_key_file.is_none()
        {
            self.warnings.push(format!(
                "worker {} is not on this machine, and --attach-key-file is not set: it grants no memory, and pixels go \
                 inline; give the gateway and the worker the same key file",
                worker.label
            ));
        }
    }

    fn look_at_access(&mut self, args: &ServeArgs) {
        if args.access.tenancy == Tenancy::ApiKey && args.access.api_key_file.is_none() {
            self.warnings
                .push("--tenancy api-key without --api-key-file: a client can be whatever tenant it says".into());
        }
        if args.access.api_key_file.is_none() && !args.listening.listen.ip().is_loopback() {
            self.warnings.push(format!(
                "--listen {} is open to others, and --api-key-file is not set: whoever reaches it is served",
                args.listening.listen
            ));
        }
        if !args.listening.admin_listen.ip().is_loopback() {
            self.warnings.push(format!(
                "--admin-listen {} is not a loopback address: whoever reaches it can remove workers",
                args.listening.admin_listen
            ));
        }
    }

    fn look_at_memory(&mut self, args: &ServeArgs) {
        let sum = args.budgets().sum();
        if let Some(bytes) = limits::memory_bytes().filter(|bytes| sum > *bytes) {
            self.warnings.push(format!(
                "the memory that the settings add up to ({}) is more than the process may have ({}): lower --arena-bytes, \
                 --body-budget-bytes or the --media-*-budget-bytes; `mediagate config show` lists them",
                ByteSize(sum),
                ByteSize(bytes)
            ));
        }
    }

    /// One line a finding; ends with the verdict.
    pub fn report(&self) -> String {
        let errors = self.errors.iter().map(|error| format!("error: {error}\n"));
        let warnings = self.warnings.iter().map(|warning| format!("warning: {warning}\n"));
        let verdict = match (self.errors.len(), self.warnings.len()) {
            (0, 0) => "the configuration is sound\n".to_owned(),
            (0, warnings) => format!("the gateway would start; {warnings} warning(s)\n"),
            (errors, warnings) => format!("the gateway would not start: {errors} error(s), {warnings} warning(s)\n"),
        };
        errors.chain(warnings).chain([verdict]).collect()
    }

    /// For the exit code.
    pub fn outcome(&self) -> Result<(), ConfigError> {
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Invalid("the configuration has errors".into())),
        }
    }
}
