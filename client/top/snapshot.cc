#include "client/top/snapshot.h"

#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "client/base/job_group.h"
#include "client/output/format.h"
#include "common/base/ids.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

namespace sft::client::top {
namespace {

using Jobs = v1::JobService;

constexpr v1::Job::State kActive[] = {v1::Job::PENDING, v1::Job::PREPARING, v1::Job::RUNNING,
                                      v1::Job::CANCELLING};
constexpr v1::Job::State kEnded[] = {v1::Job::SUCCEEDED, v1::Job::FAILED, v1::Job::CANCELLED};

// Lists jobs in these states behind those that are there, up to kMaxJobs; returns how many match.
absl::StatusOr<int64_t> List(Calls& calls, v1::ListJobsRequest request,
                             std::span<const v1::Job::State> states, std::vector<v1::Job>& jobs) {
  for (const v1::Job::State state : states) request.add_states(state);
  request.set_count(true);
  int64_t total = 0;
  while (true) {
    // At least one: it is counted then.
    request.set_page_size(std::max(1, kMaxJobs - static_cast<int>(jobs.size())));
    SFT_ASSIGN_OR_RETURN(const v1::ListJobsResponse page,
                         calls.Call<Jobs>(&Jobs::Stub::ListJobs, request));
    SFT_RETURN_IF_ERROR(CheckFiltered(request, page));
    if (request.count()) total = page.total();
    request.set_count(false);
    for (const v1::Job& job : page.jobs()) {
      if (static_cast<int>(jobs.size()) < kMaxJobs) jobs.push_back(job);
    }
    request.set_page_token(page.next_page_token());
    if (page.next_page_token().empty() || static_cast<int>(jobs.size()) >= kMaxJobs) return total;
  }
}

absl::Status FetchJobs(Calls& calls, const Query& query, Snapshot& into) {
  v1::ListJobsRequest request = RequestOf(query);
  into.jobs.clear();
  if (query.page == Page::kQueue) {
    request.set_order_by("submitted");  // the first in line are among the oldest
    SFT_ASSIGN_OR_RETURN(into.active, List(calls, request, {kActive, 1}, into.jobs));
    // Those in no line, and those of which nothing is known, come last.
    std::ranges::stable_sort(into.jobs, {}, [](const v1::Job& job) {
      return job.outlook().place() > 0 ? job.outlook().place() : kMaxJobs * 1000;
    });
    into.ended = 0;
    return absl::OkStatus();
  }
  SFT_ASSIGN_OR_RETURN(into.active, List(calls, request, kActive, into.jobs));
  SFT_ASSIGN_OR_RETURN(into.ended, List(calls, request, kEnded, into.jobs));
  return absl::OkStatus();
}

absl::Status FetchNodes(Calls& calls, Snapshot& into) {
  v1::ListNodesRequest request;
  into.nodes.clear();
  do {
    SFT_ASSIGN_OR_RETURN(
        const v1::ListNodesResponse page,
        calls.Call<v1::ClusterService>(&v1::ClusterService::Stub::ListNodes, request));
    into.nodes.insert(into.nodes.end(), page.nodes().begin(), page.nodes().end());
    into.warning = page.warning();
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

absl::Status FetchCurve(Calls& calls, const Query& query, Snapshot& into) {
  v1::GetCurveRequest request;
  request.set_name(query.job);
  if (query.tab == Tab::kRanks) {
    request.add_values("rank_loss");
    request.add_values("rank_memory");
  } else {
    request.add_values(query.value);
    if (query.value == "loss") request.add_values("val_loss");
  }
  request.set_max_parts(query.parts);
  if (query.begin) request.set_begin(*query.begin);
  if (query.end) request.set_end(*query.end);
  SFT_ASSIGN_OR_RETURN(into.curve, calls.Call<Jobs>(&Jobs::Stub::GetCurve, request));
  return absl::OkStatus();
}

// The log that says most: of the process that a verdict speaks of, else of rank 0.
absl::Status FetchLog(Calls& calls, const Query& query, Snapshot& into) {
  v1::ReadLogRequest request;
  request.set_name(query.job);
  const v1::Verdict& verdict = into.job->verdict();
  request.set_rank(std::max(0, into.job->has_verdict() ? verdict.rank() : 0));
  if (verdict.process() == "prepare") request.set_stream("prepare");
  request.set_tail_lines(kMaxLines);
  std::string text;
  const absl::Status status = calls.With([&](grpc::ClientContext& context) {
    Jobs::Stub stub = calls.connection().To<Jobs>();
    const auto reader = stub.ReadLog(&context, request);
    v1::ReadLogResponse piece;
    while (reader->Read(&piece)) text += piece.data();
    return reader->Finish();
  });
  into.log.clear();
  // A job that has not begun has none.
  if (absl::IsNotFound(status)) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(status);
  if (text.ends_with('\n')) text.pop_back();
  if (!text.empty()) into.log = absl::StrSplit(text, '\n');
  if (into.log.size() > kMaxLines) into.log.erase(into.log.begin(), into.log.end() - kMaxLines);
  return absl::OkStatus();
}

absl::Status FetchEvents(Calls& calls, const Query& query, Snapshot& into) {
  v1::ListEventsRequest request;
  request.set_name(query.job);
  into.events.clear();
  do {
    SFT_ASSIGN_OR_RETURN(const v1::ListEventsResponse page,
                         calls.Call<Jobs>(&Jobs::Stub::ListEvents, request));
    into.events.insert(into.events.end(), page.events().begin(), page.events().end());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  if (into.events.size() > kMaxLines) {
    into.events.erase(into.events.begin(), into.events.end() - kMaxLines);
  }
  return absl::OkStatus();
}

absl::Status FetchJob(Calls& calls, const Query& query, Snapshot& into) {
  v1::GetJobRequest request;
  request.set_name(query.job);
  SFT_ASSIGN_OR_RETURN(into.job, calls.Call<Jobs>(&Jobs::Stub::GetJob, request));
  switch (query.tab) {
    case Tab::kCurve:
    case Tab::kRanks:
      return FetchCurve(calls, query, into);
    case Tab::kLog:
      return FetchLog(calls, query, into);
    case Tab::kEvents:
      return FetchEvents(calls, query, into);
  }
  return absl::OkStatus();
}

}  // namespace

v1::ListJobsRequest RequestOf(const Query& query) {
  v1::ListJobsRequest request;
  request.set_order_by(query.order);
  request.set_filter(query.filter);
  if (query.whole) return request;
  for (const char* const field : {"state", "reason", "display_name", "owner", "variant", "held",
                                  "kind", "progress", "outlook"}) {
    request.add_fields(field);
  }
  return request;
}

void Fetch(Calls& calls, const Query& query, Snapshot& snapshot) {
  if (query.job != snapshot.query.job) {
    // What was seen of another job is not shown as this one's.
    snapshot.job.reset();
    snapshot.curve.Clear();
    snapshot.log.clear();
    snapshot.events.clear();
    snapshot.query.job = query.job;
  }
  Snapshot fresh = snapshot;
  const auto ask = [&]() -> absl::Status {
    if (query.page == Page::kJob) return FetchJob(calls, query, fresh);
    SFT_RETURN_IF_ERROR(FetchNodes(calls, fresh));
    return query.page == Page::kNodes ? absl::OkStatus() : FetchJobs(calls, query, fresh);
  };
  const absl::Status status = ask();
  if (status.ok()) {
    snapshot = std::move(fresh);
    snapshot.time = calls.connection().clock().Wall();
    snapshot.query = query;
  }
  snapshot.status = status;
}

std::string Action::Command() const {
  constexpr const char* kCommands[] = {"", "cancel", "hold", "release", "checkpoint"};
  return fmt::format("sftctl {} {}", kCommands[static_cast<size_t>(kind)], ShortName(job));
}

absl::Status Do(Calls& calls, const Action& action) {
  const auto named = [&](auto request) {
    request.set_name(action.job);
    return request;
  };
  using Scheduling = v1::SchedulingService;
  switch (action.kind) {
    case Action::Kind::kCancel:
      return calls.Call<Jobs>(&Jobs::Stub::CancelJob, named(v1::CancelJobRequest())).status();
    case Action::Kind::kHold:
      return calls.Call<Scheduling>(&Scheduling::Stub::HoldJob, named(v1::HoldJobRequest()))
          .status();
    case Action::Kind::kRelease:
      return calls.Call<Scheduling>(&Scheduling::Stub::ReleaseJob, named(v1::ReleaseJobRequest()))
          .status();
    case Action::Kind::kCheckpoint: {
      v1::CheckpointJobRequest request = named(v1::CheckpointJobRequest());
      request.set_request_id(RandomUuid());
      return calls.Call<Jobs>(&Jobs::Stub::CheckpointJob, request).status();
    }
    case Action::Kind::kNone:
      break;
  }
  return absl::OkStatus();
}

}  // namespace sft::client::top
