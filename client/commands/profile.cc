#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <ostream>
#include <vector>

#include "client/base/interrupt.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr int64_t kMostSteps = 20;  // that a server records

struct ProfileOptions {
  std::string job;
  int64_t steps = 3;
  std::string ranks = "0";
  std::string out;
};

// What the server has sent.
struct Profiled {
  std::vector<v1::RankProfile> ranks;
  std::string path;
  int64_t bytes = 0;
};

// The trace, which gets its name when it is whole.
class TraceFile {
 public:
  explicit TraceFile(std::string part) : part_(std::move(part)) {}
  ~TraceFile() {
    if (file_.has_value()) std::remove(part_.c_str());
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  absl::Status Open() {
    SFT_ASSIGN_OR_RETURN(file_, io::AppendFile::Open(part_));
    return file_->Truncate(0);
  }
  absl::Status Add(std::string_view bytes) {
    bytes_ += static_cast<int64_t>(bytes.size());
    return file_->Append(bytes);
  }
  absl::Status Name(const std::string& path) {
    if (bytes_ == 0) return Internal("the server has sent no trace");
    SFT_RETURN_IF_ERROR(io::RenameDurably(part_, path));
    file_.reset();
    return absl::OkStatus();
  }
  int64_t bytes() const { return bytes_; }

 private:
  const std::string part_;
  std::optional<io::AppendFile> file_;
  int64_t bytes_ = 0;
};

absl::StatusOr<v1::ProfileJobRequest> RequestOf(const ProfileOptions& options) {
  if (options.steps < 1 || options.steps > kMostSteps) {
    return InvalidArgument(fmt::format("--steps: 1 to {} can be recorded", kMostSteps));
  }
  v1::ProfileJobRequest request;
  request.set_name(options.job);
  request.set_steps(static_cast<int32_t>(options.steps));
  if (options.ranks == "all") {
    request.set_all_ranks(true);
    return request;
  }
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(options.ranks, ','))) {
    int32_t rank = 0;
    if (!absl::SimpleAtoi(word, &rank) || rank < 0) {
      return InvalidArgument(fmt::format(
          "--rank: \"{}\" is no rank's number: write one, several as 0,8,16, or all", word));
    }
    request.add_ranks(rank);
  }
  return request;
}

std::string PathOf(const ProfileOptions& options, const std::vector<v1::RankProfile>& ranks) {
  if (!options.out.empty()) return options.out;
  return fmt::format("{}-step-{}.trace.json.gz", ShortName(options.job),
                     ranks.empty() ? 0 : ranks.front().first_step());
}

absl::StatusOr<Profiled> Receive(Connection& connection, const ProfileOptions& options,
                                 bool quiet) {
  SFT_ASSIGN_OR_RETURN(const v1::ProfileJobRequest request, RequestOf(options));
  TraceFile file((options.out.empty() ? ShortName(options.job) : options.out) + "." +
                 RandomId("part"));
  SFT_RETURN_IF_ERROR(file.Open());
  grpc::ClientContext context;
  Interrupt interrupt(context);
  const auto reader = connection.To<v1::JobService>().ProfileJob(&context, request);
  Profiled profiled;
  v1::ProfileJobResponse response;
  std::string waited_for;
  absl::Status saved;
  while (saved.ok() && reader->Read(&response)) {
    if (!quiet && !response.waiting().empty() && response.waiting() != waited_for) {
      waited_for = response.waiting();
      connection.console().err << "waiting for " << OneLine(waited_for) << "\n";
    }
    if (response.has_rank()) profiled.ranks.push_back(response.rank());
    if (!response.trace().empty()) saved = file.Add(response.trace());
  }
  if (!saved.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  SFT_RETURN_IF_ERROR(saved);
  if (!status.ok()) return connection.Describe(status);
  profiled.path = PathOf(options, profiled.ranks);
  profiled.bytes = file.bytes();
  SFT_RETURN_IF_ERROR(file.Name(profiled.path));
  return profiled;
}

Json RankJson(const v1::RankProfile& rank) {
  Json shares = Json::object();
  for (const v1::ProfileShare& share : rank.shares()) shares[share.kind()] = share.seconds();
  Json notes = Json::array();
  for (const std::string& note : rank.notes()) notes.push_back(note);
  return {{"rank", rank.rank()},
          {"device", rank.device()},
          {"first_step", rank.first_step()},
          {"steps", rank.steps()},
          {"seconds", rank.seconds()},
          {"shares", shares},
          {"hidden_communication_seconds", rank.hidden_communication_seconds()},
          {"step_seconds_before", rank.step_seconds_before()},
          {"stall_seconds", rank.stall_seconds()},
          {"events", rank.events()},
          {"events_left_out", rank.events_left_out()},
          {"notes", notes}};
}

std::string JsonText(const Profiled& profiled) {
  Json ranks = Json::array();
  for (const v1::RankProfile& rank : profiled.ranks) ranks.push_back(RankJson(rank));
  const Json json{{"trace", profiled.path}, {"trace_bytes", profiled.bytes}, {"ranks", ranks}};
  return DumpJson(json, 2) + "\n";
}

double SecondsOfKind(const v1::RankProfile& rank, const std::string& kind) {
  for (const v1::ProfileShare& share : rank.shares()) {
    if (share.kind() == kind) return share.seconds();
  }
  return 0;
}

// "12.34 ms  45.6 %" of a step.
std::string PartOfStep(const v1::RankProfile& rank, double seconds) {
  if (rank.steps() <= 0 || rank.seconds() <= 0) return "-";
  return fmt::format("{:10.3f} ms {:6.2f} %", 1000 * seconds / rank.steps(),
                     100 * seconds / rank.seconds());
}

// The kinds that some rank had, in the order of the first rank's.
std::string SharesText(const std::vector<v1::RankProfile>& ranks) {
  std::vector<std::string> header = {"PER STEP"};
  for (const v1::RankProfile& rank : ranks) header.push_back(fmt::format("RANK {}", rank.rank()));
  Table table(header);
  const auto add = [&](const std::string& name, const auto& seconds_of) {
    std::vector<std::string> row = {name};
    bool any = false;
    for (const v1::RankProfile& rank : ranks) {
      const double seconds = seconds_of(rank);
      any = any || seconds > 0;
      row.push_back(PartOfStep(rank, seconds));
    }
    if (any) table.Add(row);
  };
  for (const v1::ProfileShare& share : ranks.front().shares()) {
    add(share.kind(),
        [&](const v1::RankProfile& rank) { return SecondsOfKind(rank, share.kind()); });
  }
  add("total", [](const v1::RankProfile& rank) { return rank.seconds(); });
  add("communication beside computation",
      [](const v1::RankProfile& rank) { return rank.hidden_communication_seconds(); });
  return table.Render();
}

// What was recorded, and what that cost.
std::string AboutRank(const v1::RankProfile& rank) {
  if (rank.steps() <= 0) return fmt::format("rank {}: no step\n", rank.rank());
  const double step = rank.seconds() / rank.steps();
  const double before = rank.step_seconds_before();
  std::string text = fmt::format("rank {} on {}: steps {} to {}, {:.4f} s each", rank.rank(),
                                 OneLine(rank.device()), rank.first_step(),
                                 rank.first_step() + rank.steps() - 1, step);
  if (before > 0) {
    text += fmt::format(" ({:.4f} s before: {:+.1f} % by the recording or by chance)", before,
                        100 * (step / before - 1));
  }
  text += fmt::format("; the training stood still for {:.2f} s\n", rank.stall_seconds());
  if (rank.events_left_out() > 0) {
    text += fmt::format("  its trace lacks the last {} of {} events: ask for fewer steps\n",
                        rank.events_left_out(), rank.events() + rank.events_left_out());
  }
  for (const std::string& note : rank.notes()) text += "  " + OneLine(note) + "\n";
  return text;
}

ExitCode Profile(Connection& connection, const ProfileOptions& options, bool json) {
  const auto profiled = Receive(connection, options, /*quiet=*/json);
  if (!profiled.ok()) {
    if (!Interrupt::Raised()) return Fail(connection, profiled.status());
    connection.console().err << "the recording was ended; the job trains on\n";
    return kInterrupted;
  }
  if (json) {
    connection.console().out << JsonText(*profiled);
    return kSucceeded;
  }
  std::ostream& out = connection.console().out;
  for (const v1::RankProfile& rank : profiled->ranks) out << AboutRank(rank);
  if (!profiled->ranks.empty()) out << "\n" << SharesText(profiled->ranks);
  out << fmt::format("\n{} ({}): open it in https://ui.perfetto.dev\n", profiled->path,
                     Bytes(profiled->bytes));
  return kSucceeded;
}

}  // namespace

void AddProfile(Command& app, Session& session) {
  Command* command = app.AddCommand("profile", "Show where a running job's steps spend their time",
                                    "sftctl profile job-abc --steps 3 --rank all");
  auto options = std::make_shared<ProfileOptions>();
  command->AddOption("JOB", options->job, "Job that trains")->Required();
  command->AddOption("--steps", options->steps, "Record the next so many steps (1 to 20)");
  command->AddOption("--rank", options->ranks,
                     "Rank to record, several as 0,8,16, or all (at most 16)");
  command->AddOption("-o,--out", options->out,
                     "Where to write the trace (default: JOB-step-N.trace.json.gz)");
  AddJsonFlag(command, session);
  command->Check([options] { return std::string(Message(RequestOf(*options).status())); });
  command->Run([&session, options](Connection& connection) {
    return Profile(connection, *options, session.json);
  });
}

}  // namespace sft::client
