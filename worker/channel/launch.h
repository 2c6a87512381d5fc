#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// Launch files: JSON files that the worker daemon writes into an attempt's folder before it starts
// the attempt on its node. Readers: sft-shim (ShimLaunch) and sft-rank (RankLaunch). Unknown
// members are ignored, so that a newer daemon can start an older rank.
//
//   <attempt dir>/shim.json        ShimLaunch
//   <attempt dir>/launch.json      RankLaunch
//   <attempt dir>/status.json      ShimStatus, written by the shim, each time atomically
//   <attempt dir>/prepare.log      standard output and error of `sft-rank prepare`
//   <attempt dir>/prepare.events   its events (event.h)
//   <attempt dir>/rank-<r>.log     of global rank r, append-only
//   <attempt dir>/rank-<r>.events
//   <attempt dir>/rank-<r>.flight  its flight record (worker/channel/flight_record.h)
//   <attempt dir>/node.events      warnings of the worker about the attempt
//   <attempt dir>/profile-<id>/    a recording of steps that is under way (step_table.h)
//   <attempt dir>/rank-<r>.gap     LogGap, written by the shim; prepare.gap likewise
//   <attempt dir>/adapter/         links to the adapter that a job answers with
//   <attempt dir>/output/          the attempt's result: adapter, full model or answers

namespace sft::channel {

// A further file with training rows.
struct RowFile {
  std::string path;
  std::string name, stamp;  // as those of the first
};

// Everything that the ranks of one attempt on one node need; the same for all of them.
struct RankLaunch {
  std::string attempt_uid;
  int64_t epoch = 0;
  std::string job_json;    // resolved job (common/spec, ToJson)
  int world_size = 1;      // ranks of the gang on all nodes
  int first_rank = 0;      // global rank of this node's first rank
  int local_ranks = 1;     // ranks on this node
  std::string rendezvous;  // "host:port" of the rendezvous store, where rank 0 listens
  std::string device;      // "cpu" or "cuda"; local rank k uses cuda:k of those visible to it
  int threads_per_rank = 1;
  std::string model_dir;    // Hugging Face directory on this node
  std::string model_name;   // the job's name for it, for the adapter's configuration
  std::string adapter_dir;  // that answers prompts; empty: the base alone
  std::string train_file;   // data set on this node, or prompts
  std::string val_file;     // empty: no validation rows
  std::string train_name;   // the submitter's names for them, for messages; empty: no other name
  std::string val_name;
  // Stamps of the files when the worker allowed them (common/io/file_stamp.h, ContentStamp); a file
  // that was replaced or written since is refused. Empty: not checked.
  std::string train_stamp;
  std::string val_stamp;
  std::vector<RowFile> more_train_files;  // of a job that names several (data.mixture)
  std::string cache_dir;                  // prepared data sets, keyed by content
  std::string attempt_dir;                // folder of the event files
  std::string output_dir;                 // the artifact (adapter or full model) is written here
  std::string job_id;
  std::string node;  // its name, for messages
  // What the ranks' environment says of the network: "NCCL_SOCKET_IFNAME==eth0".
  std::vector<std::string> network_settings;
  // Unix socket on which a job of kind "serve" is asked (worker/rank/serve_job.h): each rank adds
  // its place on the node, from 0.
  std::string serve_socket;
  // Folders in which programs that grade answers may lie; empty: there may be none.
  std::vector<std::string> grader_roots;
  int64_t grader_memory_mb = 0;  // that each of them may have at most; 0: what its job gives it
  // Unix socket on which the worker passes questions to judges on (worker/grading/judges.h); empty:
  // the job has none.
  std::string judge_socket;
  // Folder of the job's checkpoints on this node, each in step-<n>; empty: none are written.
  std::string checkpoint_dir;
  // A complete checkpoint to continue from; empty: begin at step 0.
  std::string resume_dir;
  int64_t resume_step = 0;  // its step; 0: any
  // Continue even if the checkpoint belongs to another job file, data set or engine, where
  // possible; or only to another engine.
  bool resume_changed = false;
  bool resume_engine_alone = false;
  // Memory limit of `prepare`; 0: chosen from the data and the node (worker/rank/memory_limit.h).
  int64_t prepare_memory_bytes = 0;
};

// How the shim starts the processes of one attempt on this node.
struct ShimLaunch {
  struct Process {
    std::string name;  // "prepare", "rank-0": names its .log and .events
    int rank = -1;     // global rank; -1 for prepare
    std::vector<std::string> argv;
    std::map<std::string, std::string> env;  // added to the shim's own variables
  };
  std::string attempt_uid;
  int64_t epoch = 0;
  std::string attempt_dir;
  std::string socket_path;  // control socket (Command); Unix paths end at 107 bytes
  Process prepare;          // runs to its end before the ranks start; empty argv: none
  std::vector<Process> ranks;
  double grace_seconds = 10;   // from SIGTERM to SIGKILL
  double fencing_seconds = 0;  // ranks end when no `renew` came for this long; 0: never
  double fencing_age = 0;      // the part of that time that had passed when the file was written
  // A larger log loses its middle: the first mebibyte and the newest part stay. 0: no limit.
  int64_t log_limit_bytes = 0;
};

// The bytes of a log removed by its limit; begin = end: none. They read as zeros, and the offsets
// of the others stay. Written in place before the bytes are removed: a reader that reads it after a
// piece of the log knows which bytes of the piece are the process's own.
struct LogGap {
  int64_t begin = 0;
  int64_t end = 0;
};

// State of an attempt on a node, as its shim writes it. Terminal when state is "exited".
struct ShimStatus {
  struct Process {
    std::string name;
    int rank = -1;
    int64_t pid = 0;
    bool exited = false;
    int exit_code = 0;  // valid when exited and signal is 0
    int signal = 0;     // signal that ended it
    int order = 0;      // 1 for the first process to end, 2 for the next; 0: still running
  };
  std::string attempt_uid;
  int64_t epoch = 0;
  int64_t shim_pid = 0;
  uint64_t shim_start_ticks = 0;  // field 22 of /proc/<pid>/stat: detects a reused pid
  std::string state;              // "preparing", "running", "stopping", "exited"
  std::string reason;  // why it stops or did not start: "stop requested", "rank 1 failed", ...
  // Set while stopping: "command", "signal" (SIGTERM to the shim), "watch" (the worker found that
  // the ranks hang), "failure" of a process, "fencing"; else empty.
  std::string cause;
  std::vector<Process> processes;
};

// A command: one JSON line. On the shim's control socket (SOCK_STREAM; one Answer line for each):
//   {"command":"renew","age":0.5}        the server was last heard that many seconds ago; restarts
//                                        the fencing timer from then
//   {"command":"stop","reason":"..."}    ends the ranks: command, SIGTERM, grace, SIGKILL to
//                                        groups; "cause":"watch" when the worker found that they
//                                        hang
//   {"command":"checkpoint"}             passed to the ranks' standard input
//   {"command":"profile","id":"...","steps":3}   likewise; ranks record their next steps
//                                        (step_table.h)
//   {"command":"status"}                 changes nothing
// On the standard input of a rank: "stop", "checkpoint" and "profile"; no answer. End of file means
// that the shim has died.
struct Command {
  std::string command;
  std::string reason;
  std::string cause;
  double age = 0;
  std::string id;
  int64_t steps = 0;
};

// Answer of the shim; `status` is the one after the command.
struct Answer {
  bool ok = false;
  std::string error;  // set when not ok
  ShimStatus status;
};

// One line, with its '\n'.
std::string ToLine(const Command& command);
std::string ToLine(const Answer& answer);
absl::StatusOr<Command> ParseCommand(std::string_view line);
absl::StatusOr<Answer> ParseAnswer(std::string_view line);

std::string ToJson(const RankLaunch& launch);
// Always of the same length.
std::string ToText(const LogGap& gap);
absl::StatusOr<LogGap> ParseLogGap(std::string_view text);
std::string ToJson(const ShimLaunch& launch);
std::string ToJson(const ShimStatus& status);
absl::StatusOr<RankLaunch> ParseRankLaunch(std::string_view json);
absl::StatusOr<ShimLaunch> ParseShimLaunch(std::string_view json);
absl::StatusOr<ShimStatus> ParseShimStatus(std::string_view json);

// Exit codes of sft-rank and sft-shim; the worker turns them into a verdict together with the
// `fatal` event. Any other code, or a signal, is an unexplained death of the process.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 2,            // wrong flags or launch file
  kExitUserError = 64,       // bad data, model or value; NaN loss: not retried
  kExitInfrastructure = 65,  // device, network, disk
  kExitInternal = 66,        // a bug of ours
  kExitStopped = 67,         // ended because it was told to stop
  kExitAlreadyRuns = 68,     // sft-shim: the attempt has a shim, or had one
};

}  // namespace sft::channel
