#pragma once

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "worker/transfer/server_api.h"

namespace sft::worker {

// A server in memory that keeps offsets as the real one does. Thread-compatible.
class FakeServer : public ServerApi {
 public:
  using Key = std::tuple<std::string, int>;  // attempt and rank

  // Calls `after` at the end of a call, whichever way it returns.
  struct Ending {
    FakeServer* server;
    ~Ending() noexcept(false) {
      if (server->after && std::uncaught_exceptions() == 0) server->after(server->calls);
    }
  };

  absl::StatusOr<int64_t> AppendLog(const v1::AppendLogRequest& request) override {
    SFT_RETURN_IF_ERROR(Begin());
    const Ending ending{this};
    if (request.rank() == refused_rank) return InvalidArgument("rank: there is none");
    std::string& log = logs[{request.attempt_uid(), request.rank()}];
    if (request.has_skipped_from() && request.skipped_from() <= static_cast<int64_t>(log.size())) {
      log.resize(std::max(log.size(), static_cast<size_t>(request.offset())), '#');  // a hole
    }
    const int64_t end = request.offset() + static_cast<int64_t>(request.data().size());
    const int64_t has = static_cast<int64_t>(log.size());
    if (request.offset() <= has && end > has) log += request.data().substr(has - request.offset());
    if (request.end_of_file() && end == static_cast<int64_t>(log.size()))
      ended[{request.attempt_uid(), request.rank()}] = true;
    largest_log_chunk = std::max(largest_log_chunk, request.data().size());
    return static_cast<int64_t>(log.size());
  }
  absl::StatusOr<int64_t> AppendEvents(const v1::AppendEventsRequest& request) override {
    SFT_RETURN_IF_ERROR(Begin());
    const Ending ending{this};
    int64_t& offset = event_offsets[{request.attempt_uid(), request.rank()}];
    if (request.begin_offset() > offset || request.end_offset() <= offset) return offset;
    for (const v1::RankEvent& event : request.events()) events[request.rank()].push_back(event);
    return offset = request.end_offset();
  }
  absl::StatusOr<std::string> HubToken(const v1::GetHubTokenRequest&) override { return hub_token; }
  absl::StatusOr<std::unique_ptr<ModelFile>> FetchModelFile(const v1::FetchModelFileRequest&,
                                                            const StopCheck&) override {
    return NotFound("no other node has it");
  }
  absl::StatusOr<v1::AskJudgeResponse> AskJudge(const v1::AskJudgeRequest& request,
                                                const StopCheck&) override {
    return judge(request);
  }
  absl::Status UploadArtifact(const BlobFile& file, const StopCheck& stop) override {
    SFT_RETURN_IF_ERROR(Begin());
    const Ending ending{this};
    if (stop()) return Aborted("stopped");
    uploaded.push_back(file);
    return absl::OkStatus();
  }
  absl::Status Download(const std::string& sha256, int64_t offset,
                        const std::function<absl::Status(std::string_view)>& sink,
                        const StopCheck&) override {
    SFT_RETURN_IF_ERROR(Begin());
    const Ending ending{this};
    download_offsets.push_back(offset);
    if (!blobs.contains(sha256)) return NotFound("no blob " + sha256);
    std::string rest = blobs[sha256].substr(offset);
    if (break_download_after >= 0) {
      SFT_RETURN_IF_ERROR(sink(rest.substr(0, break_download_after)));
      break_download_after = -1;
      return Unavailable("the connection broke");
    }
    return sink(rest);
  }
  absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest& request) override {
    if (!failure.ok()) return failure;
    checkpoints.push_back(request);
    return absl::OkStatus();
  }
  absl::Status CommitArtifact(const v1::CommitArtifactRequest& request) override {
    SFT_RETURN_IF_ERROR(Begin());
    const Ending ending{this};
    // The same attempt again is the same artifact.
    for (const v1::CommitArtifactRequest& known : commits) {
      if (known.attempt_uid() == request.attempt_uid()) return absl::OkStatus();
    }
    commits.push_back(request);
    return absl::OkStatus();
  }
  absl::Status SendFile(const v1::FetchFile&, const std::string&, const std::string&) override {
    return absl::OkStatus();
  }

  absl::Status SendLines(const std::string& request, const NextLine& next) override {
    absl::StatusOr<std::string> line = next();
    for (; line.ok() && !line->empty(); line = next()) lines[request] += *line;
    lines[request] += Message(line.status());
    return absl::OkStatus();
  }

  std::map<std::string, std::string> lines;  // sent by SendLines, and the error at their end
  absl::Status failure;                      // returned by every call while it is not OK
  // Called before and after each call, with the number of calls so far; may throw, as if the worker
  // died there.
  std::function<void(int)> before, after;
  int calls = 0;
  std::string hub_token;
  std::function<absl::StatusOr<v1::AskJudgeResponse>(const v1::AskJudgeRequest&)> judge;
  std::map<Key, std::string> logs;
  std::map<Key, bool> ended;
  std::map<Key, int64_t> event_offsets;
  std::map<int, std::vector<v1::RankEvent>> events;  // by rank
  std::vector<BlobFile> uploaded;
  int refused_rank = -99;
  std::vector<v1::CommitArtifactRequest> commits;
  std::vector<v1::CommitCheckpointRequest> checkpoints;
  std::map<std::string, std::string> blobs;
  std::vector<int64_t> download_offsets;
  int64_t break_download_after = -1;
  size_t largest_log_chunk = 0;

 private:
  absl::Status Begin() {
    ++calls;
    if (before) before(calls);
    return failure;
  }
};

}  // namespace sft::worker
