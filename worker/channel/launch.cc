#include "worker/channel/launch.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <charconv>

#include "worker/channel/json_fields.h"

namespace sft::channel {

// Outside the unnamed namespace: json_fields.h finds the functions for nested records by their
// argument.
template <typename V>
static void Fields(V& v, RowFile& f) {
  v("path", f.path);
  v("name", f.name);
  v("stamp", f.stamp);
}

template <typename V>
static void Fields(V& v, RankLaunch& l) {
  v("attempt_uid", l.attempt_uid);
  v("epoch", l.epoch);
  v("job_json", l.job_json);
  v("world_size", l.world_size);
  v("first_rank", l.first_rank);
  v("local_ranks", l.local_ranks);
  v("rendezvous", l.rendezvous);
  v("device", l.device);
  v("threads_per_rank", l.threads_per_rank);
  v("model_dir", l.model_dir);
  v("model_name", l.model_name);
  v("adapter_dir", l.adapter_dir);
  v("serve_socket", l.serve_socket);
  v("train_file", l.train_file);
  v("val_file", l.val_file);
  v("train_name", l.train_name);
  v("val_name", l.val_name);
  v("train_stamp", l.train_stamp);
  v("val_stamp", l.val_stamp);
  v.List("more_train_files", l.more_train_files);
  v("cache_dir", l.cache_dir);
  v("attempt_dir", l.attempt_dir);
  v("output_dir", l.output_dir);
  v("job_id", l.job_id);
  v("node", l.node);
  v("network_settings", l.network_settings);
  v("grader_roots", l.grader_roots);
  v("grader_memory_mb", l.grader_memory_mb);
  v("judge_socket", l.judge_socket);
  v("checkpoint_dir", l.checkpoint_dir);
  v("resume_dir", l.resume_dir);
  v("resume_step", l.resume_step);
  v("resume_changed", l.resume_changed);
  v("resume_engine_alone", l.resume_engine_alone);
  v("prepare_memory_bytes", l.prepare_memory_bytes);
}

template <typename V>
static void Fields(V& v, ShimLaunch::Process& p) {
  v("name", p.name);
  v("rank", p.rank);
  v("argv", p.argv);
  v("env", p.env);
}

template <typename V>
static void Fields(V& v, ShimLaunch& l) {
  v("attempt_uid", l.attempt_uid);
  v("epoch", l.epoch);
  v("attempt_dir", l.attempt_dir);
  v("socket_path", l.socket_path);
  v.Object("prepare", l.prepare);
  v.List("ranks", l.ranks);
  v("grace_seconds", l.grace_seconds);
  v("fencing_seconds", l.fencing_seconds);
  v("fencing_age", l.fencing_age);
  v("log_limit_bytes", l.log_limit_bytes);
}

template <typename V>
static void Fields(V& v, ShimStatus::Process& p) {
  v("name", p.name);
  v("rank", p.rank);
  v("pid", p.pid);
  v("exited", p.exited);
  v("exit_code", p.exit_code);
  v("signal", p.signal);
  v("order", p.order);
}

template <typename V>
static void Fields(V& v, ShimStatus& s) {
  v("attempt_uid", s.attempt_uid);
  v("epoch", s.epoch);
  v("shim_pid", s.shim_pid);
  v("shim_start_ticks", s.shim_start_ticks);
  v("state", s.state);
  v("reason", s.reason);
  v("cause", s.cause);
  v.List("processes", s.processes);
}

template <typename V>
static void Fields(V& v, Command& c) {
  v("command", c.command);
  v("reason", c.reason);
  v("cause", c.cause);
  v("age", c.age);
  v("id", c.id);
  v("steps", c.steps);
}

template <typename V>
static void Fields(V& v, Answer& a) {
  v("ok", a.ok);
  v("error", a.error);
  v.Object("status", a.status);
}

namespace {

// A launch file holds the resolved job; a status holds a line per rank.
constexpr size_t kMaxFileBytes = 16 << 20;

// Written in one line, so that a shell can print the record.
template <typename Record>
std::string Write(Record record) {
  FieldWriter writer;
  Fields(writer, record);
  return writer.Take() + "\n";
}

template <typename Record>
absl::StatusOr<Record> Read(std::string_view json, const char* what,
                            std::initializer_list<const char*> required) {
  SFT_ASSIGN_OR_RETURN(const nlohmann::json object, ParseObject(json, kMaxFileBytes, what));
  FieldReader reader(object);
  for (const char* key : required) reader.Require(key);
  Record record;
  Fields(reader, record);
  if (!reader.status().ok()) return Annotate(reader.status(), what);
  return record;
}

absl::Status CheckProcess(const ShimLaunch::Process& process) {
  if (process.argv.empty()) {
    return InvalidArgument(fmt::format("shim launch: process \"{}\" has no argv", process.name));
  }
  // The name becomes a file name in the attempt's folder.
  if (process.name.empty() || process.name.find('/') != std::string::npos) {
    return InvalidArgument(fmt::format("shim launch: \"{}\" cannot name a process", process.name));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToJson(const RankLaunch& launch) { return Write(launch); }
std::string ToJson(const ShimLaunch& launch) { return Write(launch); }
std::string ToJson(const ShimStatus& status) { return Write(status); }

std::string ToLine(const Command& command) { return Write(command); }
std::string ToLine(const Answer& answer) { return Write(answer); }

absl::StatusOr<Command> ParseCommand(std::string_view line) {
  return Read<Command>(line, "command", {"command"});
}

absl::StatusOr<Answer> ParseAnswer(std::string_view line) {
  return Read<Answer>(line, "answer of the shim", {"ok"});
}

absl::StatusOr<RankLaunch> ParseRankLaunch(std::string_view json) {
  SFT_ASSIGN_OR_RETURN(
      RankLaunch launch,
      Read<RankLaunch>(json, "rank launch", {"attempt_uid", "job_json", "attempt_dir"}));
  if (launch.local_ranks < 1 || launch.first_rank < 0 ||
      int64_t{launch.first_rank} + launch.local_ranks > launch.world_size) {
    return InvalidArgument(
        fmt::format("rank launch: ranks {} to {} are not within a world of {}", launch.first_rank,
                    int64_t{launch.first_rank} + launch.local_ranks - 1, launch.world_size));
  }
  return launch;
}

absl::StatusOr<ShimLaunch> ParseShimLaunch(std::string_view json) {
  SFT_ASSIGN_OR_RETURN(ShimLaunch launch,
                       Read<ShimLaunch>(json, "shim launch",
                                        {"attempt_uid", "attempt_dir", "socket_path", "ranks"}));
  if (launch.ranks.empty()) return InvalidArgument("shim launch: no ranks");
  if (!launch.prepare.argv.empty()) SFT_RETURN_IF_ERROR(CheckProcess(launch.prepare));
  for (const ShimLaunch::Process& rank : launch.ranks) SFT_RETURN_IF_ERROR(CheckProcess(rank));
  if (launch.socket_path.size() >= sizeof(sockaddr_un::sun_path)) {
    return InvalidArgument(fmt::format(
        "shim launch: socket path of {} bytes, at most {} are possible: {}",
        launch.socket_path.size(), sizeof(sockaddr_un::sun_path) - 1, launch.socket_path));
  }
  if (launch.log_limit_bytes < 0) {
    return InvalidArgument("shim launch: log_limit_bytes must not be negative");
  }
  if (!(launch.grace_seconds >= 0) || !(launch.fencing_seconds >= 0)) {
    return InvalidArgument("shim launch: grace_seconds and fencing_seconds must not be negative");
  }
  return launch;
}

std::string ToText(const LogGap& gap) { return fmt::format("{:020} {:020}\n", gap.begin, gap.end); }

absl::StatusOr<LogGap> ParseLogGap(std::string_view text) {
  LogGap gap;
  const char* const end = text.data() + text.size();
  const auto begin_read = std::from_chars(text.data(), end, gap.begin);
  if (begin_read.ec == std::errc() && begin_read.ptr != end) {
    const auto end_read = std::from_chars(begin_read.ptr + 1, end, gap.end);
    if (end_read.ec == std::errc() && gap.begin >= 0 && gap.end >= gap.begin) return gap;
  }
  return InvalidArgument(fmt::format("\"{}\" is no gap of a log", text.substr(0, 80)));
}

absl::StatusOr<ShimStatus> ParseShimStatus(std::string_view json) {
  return Read<ShimStatus>(json, "shim status", {"attempt_uid", "state"});
}

}  // namespace sft::channel
