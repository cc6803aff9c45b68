//! A daemon's command line, the same for relay and edge.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, value_parser};

/// The command line or the configuration is wrong (EX_USAGE): starting again will not help.
pub const EXIT_USAGE: u8 = 64;

/// What a daemon is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The configuration file.
    pub config: PathBuf,
    /// Whether to print the configuration as it is understood, and end.
    pub check: bool,
}

/// Reads the arguments that follow the program's name, or says how the process ends now.
pub fn parse(
    name: &'static str,
    about: &'static str,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Arguments, ExitCode> {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .help("The configuration file (TOML)")
        .required(true)
        .value_parser(value_parser!(PathBuf));
    let check = Arg::new("check")
        .long("check")
        .help("Check the configuration, print it as it is understood, and end")
        .action(ArgAction::SetTrue);
    let command = Command::new(name)
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .no_binary_name(true)
        .arg(config)
        .arg(check);
    match command.try_get_matches_from(arguments) {
        Ok(mut found) => Ok(Arguments {
            config: found.remove_one("config").expect("it is required"),
            check: found.get_flag("check"),
        }),
        Err(error) => {
            let _ = error.print();
            // `--help` and `--version` come as errors too, but are answers.
            Err(if error.use_stderr() {
                ExitCode::from(EXIT_USAGE)
            } else {
                ExitCode::SUCCESS
            })
        }
    }
}

/// Prints one sentence on standard error and gives the code for a wrong configuration.
pub fn usage_error(name: &str, error: &dyn std::error::Error) -> ExitCode {
    complain(name, error);
    ExitCode::from(EXIT_USAGE)
}

/// Prints one sentence on standard error and gives the code for a failure.
pub fn failure(name: &str, error: &dyn std::error::Error) -> ExitCode {
    complain(name, error);
    ExitCode::FAILURE
}

fn complain(name: &str, error: &dyn std::error::Error) {
    let _ = writeln!(io::stderr(), "{name}: {error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Arguments, ExitCode> {
        parse(
            "kvgrid-test",
            "A test",
            arguments.iter().map(OsString::from),
        )
    }

    #[test]
    fn the_file_and_the_check_are_read() {
        let arguments = parsed(&["--config", "a.toml", "--check"]).unwrap();

        assert_eq!(arguments.config, PathBuf::from("a.toml"));
        assert!(arguments.check);
    }

    #[test]
    fn a_wrong_command_line_ends_with_64_and_help_with_0() {
        let usage = format!("{:?}", ExitCode::from(EXIT_USAGE));

        for wrong in [
            &[][..],
            &["--config"],
            &["--config", "a", "--loud"],
            &["a.toml"],
        ] {
            assert_eq!(
                format!("{:?}", parsed(wrong).unwrap_err()),
                usage,
                "{wrong:?}"
            );
        }
        let help = parsed(&["--help"]).unwrap_err();
        assert_eq!(format!("{help:?}"), format!("{:?}", ExitCode::SUCCESS));
    }
}
