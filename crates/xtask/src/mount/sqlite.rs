//! An SQLite database under concurrent writers, then PRAGMA integrity_check; also after a kill in mid-load.

use std::fmt::Write;

use super::tool;
use super::volume::Volume;
use super::{Context, Failure, Outcome};

const WRITERS: u64 = 4;
const TRANSACTIONS: u64 = 150;
const ROWS_PER_TRANSACTION: u64 = 20;

/// The journal whose deletion is the commit.
pub fn rollback_journal(context: &Context) -> Outcome {
    run(context, "delete")
}

/// The write-ahead log, with its index in a shared mapping.
pub fn write_ahead_log(context: &Context) -> Outcome {
    run(context, "wal")
}

fn run(context: &Context, journal: &str) -> Outcome {
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    let database = volume.root.join("test.db");
    let sqlite = |script: &str| {
        let mut command = context.program("sqlite3");
        tool::output(command.args(["-batch", "-bail"]).arg(&database), script)
    };
    let answer = sqlite(&format!(
        "PRAGMA journal_mode={journal};\n\
         CREATE TABLE record (writer INTEGER, number INTEGER, filler BLOB, PRIMARY KEY (writer, number));\n\
         CREATE INDEX by_filler ON record (filler);"
    ))?;
    // Where SQLite cannot have that journal, it says so and takes another.
    let answer = answer.trim_end();
    if answer != journal {
        return Err(Failure::Wrong(format!("SQLite has the journal '{answer}', not '{journal}'")));
    }

    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || sqlite(&load(writer)))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic").map(drop))
    })?;

    let rows = WRITERS * TRANSACTIONS * ROWS_PER_TRANSACTION;
    let verify = || {
        let text = sqlite(
            "PRAGMA integrity_check;\nSELECT count(*), count(DISTINCT writer), max(number) FROM record;",
        )?;
        let wanted = format!("ok\n{rows}|{WRITERS}|{}\n", TRANSACTIONS * ROWS_PER_TRANSACTION - 1);
        if text == wanted {
            Ok(())
        } else {
            Err(Failure::Wrong(format!("SQLite answers\n{text}instead of\n{wanted}")))
        }
    };
    verify()?;
    // Every commit was synced, the deletion of its journal included (EXTRA, where FULL leaves that one out), so a kill may
    // take none.
    volume.kill()?;
    volume.mount()?;
    verify()?;
    volume.finish()
}

fn load(writer: u64) -> String {
    let mut script = String::from(".timeout 60000\nPRAGMA synchronous=EXTRA;\n");
    for transaction in 0..TRANSACTIONS {
        script.push_str("BEGIN IMMEDIATE;\n");
        for row in 0..ROWS_PER_TRANSACTION {
            let number = transaction * ROWS_PER_TRANSACTION + row;
            writeln!(
                script,
                "INSERT INTO record VALUES ({writer}, {number}, randomblob({}));",
                50 + number % 700
            )
            .expect("a String takes all that is written to it");
        }
        script.push_str("COMMIT;\n");
    }
    script
}
