//! Rules about the source that no compiler checks: size of files, nothing unfinished, no output that may panic, `unsafe` where it may
//! stand, and ARCHITECTURE.md naming what exists and nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

const FILE_LINES_MAX: usize = 800;

/// Crates that may contain `unsafe`; every other one forbids it in its root.
const UNSAFE_CRATES: [&str; 1] = ["pando-device"];

/// Folders that may contain `unsafe`, in crates that deny it in their root.
const UNSAFE_FOLDERS: [(&str, &str); 1] = [("pando-fuse", "crates/pando-fuse/src/transport")];

/// What an unfinished or switched-off piece of code looks like. Split, so that this file passes its own rule.
const UNFINISHED: [&str; 4] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[", "ignore"), concat!("FIX", "ME")];

/// Macros that panic if the output cannot be written, which must end no daemon and no command: `pando_device::complain` prints an
/// error, `output.rs` of `pando` what was asked for. Split, so that this file passes its own rule.
const PRINTING: [&str; 3] = [concat!("print", "!("), concat!("println", "!("), concat!("dbg", "!(")];

/// Crates of programs that may end so.
const PRINTING_CRATES: [&str; 2] = ["pando-bench", "xtask"];

/// Runs every rule on the source tree of this workspace.
pub fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = match Sources::read(&root) {
        Ok(sources) => sources,
        Err(error) => {
            eprintln!("tidy: cannot read the source tree: {error}");
            return ExitCode::from(2);
        }
    };
    let rules: [(&str, Vec<String>); 6] = [
        ("file-length", long_files(&sources)),
        ("nothing-unfinished", unfinished(&sources)),
        ("output-without-panic", printing(&sources)),
        ("module-heads", headless_modules(&sources)),
        ("unsafe-forbidden", unsafe_allowed(&sources)),
        ("architecture", untrue_architecture(&sources)),
    ];
    let mut failed = false;
    for (name, problems) in rules {
        if problems.is_empty() {
            println!("ok tidy/{name}");
        } else {
            failed = true;
            println!("FAILED tidy/{name}");
            for problem in problems {
                println!("    {problem}");
            }
        }
    }
    ExitCode::from(failed as u8)
}

/// The files the rules look at, with paths relative to the workspace.
struct Sources {
    architecture: String,
    rust: Vec<(PathBuf, String)>,
    crates: BTreeSet<String>,
    /// Folders of modules, by their last name; not those that hold tests alone.
    folders: BTreeSet<String>,
}

impl Sources {
    fn read(root: &Path) -> io::Result<Sources> {
        let mut sources = Sources {
            architecture: fs::read_to_string(root.join("ARCHITECTURE.md"))?,
            rust: Vec::new(),
            crates: BTreeSet::new(),
            folders: BTreeSet::new(),
        };
        for entry in fs::read_dir(root.join("crates"))? {
            let entry = entry?;
            if entry.path().join("Cargo.toml").exists() {
                sources.crates.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
        sources.walk(root, Path::new("crates"))?;
        sources.walk(root, Path::new("fuzz"))?;
        sources.rust.sort();
        Ok(sources)
    }

    fn walk(&mut self, root: &Path, folder: &Path) -> io::Result<()> {
        if !root.join(folder).is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if name == "target" {
                    continue;
                }
                self.walk(root, &path)?;
            } else if name.ends_with(".rs") {
                self.add_folder(folder, &name);
                self.rust.push((path, fs::read_to_string(entry.path())?));
            }
        }
        Ok(())
    }

    /// A folder below src counts when it holds a module that is not a test.
    fn add_folder(&mut self, folder: &Path, file: &str) {
        let inside =
            folder.parent().is_some_and(|above| above.components().any(|part| part.as_os_str() == "src"));
        if inside && !file.ends_with("tests.rs") {
            let name = folder.file_name().expect("a folder below src has a name");
            self.folders.insert(name.to_string_lossy().into_owned());
        }
    }

    /// The root modules of a crate's library and program.
    fn roots(&self, name: &str) -> impl Iterator<Item = &(PathBuf, String)> {
        let source = Path::new("crates").join(name).join("src");
        self.rust
            .iter()
            .filter(move |(path, _)| *path == source.join("lib.rs") || *path == source.join("main.rs"))
    }
}

fn long_files(sources: &Sources) -> Vec<String> {
    let lengths = sources.rust.iter().map(|(path, text)| (path, text.lines().count()));
    lengths
        .filter(|(_, lines)| *lines > FILE_LINES_MAX)
        .map(|(path, lines)| format!("{}: {lines} lines, at most {FILE_LINES_MAX} allowed", path.display()))
        .collect()
}

fn unfinished(sources: &Sources) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, text) in &sources.rust {
        for (number, line) in text.lines().enumerate() {
            if let Some(sign) = UNFINISHED.iter().find(|sign| line.contains(**sign)) {
                problems.push(format!("{}:{}: {sign}", path.display(), number + 1));
            }
        }
    }
    problems
}

/// Tests and examples may print as they like.
fn printing(sources: &Sources) -> Vec<String> {
    let mut problems = Vec::new();
    for name in sources.crates.iter().filter(|name| !PRINTING_CRATES.contains(&name.as_str())) {
        let source = Path::new("crates").join(name).join("src");
        let is_test = |path: &Path| path.to_string_lossy().ends_with("tests.rs");
        for (path, text) in
            sources.rust.iter().filter(|(path, _)| path.starts_with(&source) && !is_test(path))
        {
            let code = text.lines().take_while(|line| !line.starts_with("mod tests {"));
            for (number, line) in code.enumerate() {
                if let Some(sign) = PRINTING.iter().find(|sign| line.contains(**sign)) {
                    problems.push(format!("{}:{}: {sign}", path.display(), number + 1));
                }
            }
        }
    }
    problems
}

/// Every module says what it is for; test modules in files of their own may leave that to their names.
fn headless_modules(sources: &Sources) -> Vec<String> {
    let needs_head = |path: &Path| !path.to_string_lossy().ends_with("tests.rs");
    sources
        .rust
        .iter()
        .filter(|(path, text)| needs_head(path) && !text.starts_with("//!") && !text.starts_with("#!["))
        .map(|(path, _)| format!("{}: does not open with //!", path.display()))
        .collect()
}

fn unsafe_allowed(sources: &Sources) -> Vec<String> {
    let mut problems = Vec::new();
    for name in sources.crates.iter().filter(|name| !UNSAFE_CRATES.contains(&name.as_str())) {
        let folder = UNSAFE_FOLDERS.iter().find(|(of, _)| of == name).map(|(_, folder)| Path::new(folder));
        let (word, lint) = match folder {
            Some(_) => ("deny", "#![deny(unsafe_code)]"),
            None => ("forbid", "#![forbid(unsafe_code)]"),
        };
        for (path, text) in sources.roots(name) {
            if !text.contains(lint) {
                problems.push(format!("{}: does not {word} unsafe_code", path.display()));
            }
        }
        // What is denied can be allowed again, what is forbidden cannot.
        let Some(folder) = folder else { continue };
        let source = Path::new("crates").join(name).join("src");
        for (path, text) in sources.rust.iter().filter(|(path, _)| path.starts_with(&source)) {
            let excepted = text.contains("expect(unsafe_code") || text.contains("allow(unsafe_code");
            if excepted && !path.starts_with(folder) {
                problems.push(format!("{}: unsafe stands in {} alone", path.display(), folder.display()));
            }
        }
    }
    problems
}

/// Compares the words of ARCHITECTURE.md with what exists: crates and folders both ways, files one way.
fn untrue_architecture(sources: &Sources) -> Vec<String> {
    let words: BTreeSet<&str> = sources
        .architecture
        .split(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c)))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| !word.is_empty())
        .collect();
    // A path such as betree/flush.rs names its folder too.
    let named: BTreeSet<&str> = words.iter().flat_map(|word| word.split('/')).collect();
    let is_folder = |part: &str| sources.folders.contains(part) || sources.crates.contains(part);
    let top = ["crates", "src", "tests", "docs", "fuzz", "fixtures", "scripts"];

    let mut problems = Vec::new();
    for name in sources.crates.iter().chain(&sources.folders) {
        if !named.contains(name.as_str()) {
            problems.push(format!("ARCHITECTURE.md does not name {name}, which exists"));
        }
    }
    for word in words {
        let (folders, file) = word.rsplit_once('/').unwrap_or(("", word));
        let missing_folder = folders.split('/').filter(|part| !part.is_empty() && word.ends_with('/'));
        for part in missing_folder.filter(|part| !is_folder(part) && !top.contains(part)) {
            problems.push(format!("ARCHITECTURE.md names the folder {part}/, which does not exist"));
        }
        if file.starts_with("pando-") && !file.contains('.') && !sources.crates.contains(file) {
            problems.push(format!("ARCHITECTURE.md names the crate {file}, which does not exist"));
        }
        if file.ends_with(".rs") && !sources.rust.iter().any(|(path, _)| path.ends_with(word)) {
            problems.push(format!("ARCHITECTURE.md names the file {word}, which does not exist"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(architecture: &str) -> Sources {
        Sources {
            architecture: architecture.to_owned(),
            rust: vec![(PathBuf::from("crates/pando-engine/src/betree/flush.rs"), "//! Head.\n".to_owned())],
            crates: BTreeSet::from(["pando-engine".to_owned()]),
            folders: BTreeSet::from(["betree".to_owned()]),
        }
    }

    #[test]
    fn a_true_architecture_has_no_problems() {
        let text = "`pando-engine` has betree/ with betree/flush.rs, and tests/.";
        assert_eq!(untrue_architecture(&sources(text)), Vec::<String>::new());
    }

    #[test]
    fn what_is_missing_on_either_side_is_named() {
        let problems = untrue_architecture(&sources("`pando-engin` has lsm/ with lsm/compact.rs."));
        for name in ["betree", "pando-engine", "lsm/", "compact.rs", "pando-engin,"] {
            assert!(problems.iter().any(|problem| problem.contains(name)), "{name} not in {problems:?}");
        }
    }

    #[test]
    fn unfinished_code_is_found_with_its_line() {
        let mut sources = sources("");
        sources.rust[0].1 = format!("//! Head.\nfn f() {{ {}) }}\n", UNFINISHED[0]);
        assert_eq!(
            unfinished(&sources),
            [format!("crates/pando-engine/src/betree/flush.rs:2: {}", UNFINISHED[0])]
        );
    }

    #[test]
    fn output_that_may_panic_is_found_outside_tests() {
        let mut sources = sources("");
        sources.rust[0].1 = format!("//! Head.\nfn f() {{ e{}\"\") }}\nmod tests {{\n{0}\"\")", PRINTING[1]);
        assert_eq!(
            printing(&sources),
            [format!("crates/pando-engine/src/betree/flush.rs:2: {}", PRINTING[1])]
        );
    }
}
