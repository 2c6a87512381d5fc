#include "server/fleet/file_relay.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/ids.h"
#include "common/base/plain_text.h"

namespace sft::server {

namespace {

// How soon a reader that waits sees that its caller has gone, or the node.
constexpr Nanos kSeesGone = std::chrono::seconds(1);

std::string Away(const std::string& node, bool asks) {
  return node + (asks ? ", where the job runs, is not connected now"
                      : " keeps the file and is not connected now");
}

}  // namespace

absl::Status FileRelay::HasRoom(const Queue& wanted) const {
  int files = 0, questions = 0, of_job = 0, of_node = 0;
  for (const auto& [request, queue] : queues_) {
    ++(queue->attempt_uid.empty() ? files : questions);
    if (queue->attempt_uid.empty() || queue->node != wanted.node) continue;
    if (queue->attempt_uid == wanted.attempt_uid) ++of_job;
    ++of_node;
  }
  if (wanted.attempt_uid.empty()) {
    if (files < kMaxTransfers) return absl::OkStatus();
    return ResourceExhausted(
        fmt::format("{} files are being fetched from nodes: try again later", files));
  }
  if (of_job >= kMaxQuestionsOfJob) {
    return ResourceExhausted(
        fmt::format("{} questions to this job are being answered: try again later", of_job));
  }
  if (of_node >= kMaxQuestionsOfNode) {
    return ResourceExhausted(fmt::format(
        "{} questions to jobs on {} are being answered: try again later", of_node, wanted.node));
  }
  if (questions < kMaxQuestions) return absl::OkStatus();
  return ResourceExhausted(
      fmt::format("{} questions are being answered: try again later", questions));
}

absl::StatusOr<std::unique_ptr<FileRelay::Transfer>> FileRelay::Begin(
    const std::shared_ptr<Queue>& queue, const Fill& fill) {
  const std::string request = RandomId("fetch");
  {
    MutexLock lock(mutex_);
    SFT_RETURN_IF_ERROR(HasRoom(*queue));
    queues_[request] = queue;
  }
  std::unique_ptr<Transfer> transfer(new Transfer(*this, request, queue));
  v1::ServerMessage message;
  fill(request, message);
  if (!registry_.Send(queue->node, message)) {
    return Unavailable(Away(queue->node, !queue->attempt_uid.empty()));
  }
  return transfer;
}

absl::StatusOr<std::unique_ptr<FileRelay::Transfer>> FileRelay::Start(
    const std::string& node, const std::string& path, int64_t offset,
    const std::vector<std::string>& jobs) {
  const auto queue = std::make_shared<Queue>();
  queue->node = node;
  queue->next = offset;
  return Begin(queue, [&](const std::string& request, v1::ServerMessage& message) {
    message.mutable_fetch_file()->set_request(request);
    message.mutable_fetch_file()->set_path(path);
    message.mutable_fetch_file()->set_offset(offset);
    v1::JobFolders& folders = *message.mutable_fetch_file()->mutable_folders();
    for (const std::string& job : jobs) folders.add_jobs(job);
  });
}

absl::StatusOr<std::unique_ptr<FileRelay::Transfer>> FileRelay::Ask(const std::string& node,
                                                                    const std::string& attempt_uid,
                                                                    const std::string& question) {
  const auto queue = std::make_shared<Queue>();
  queue->node = node;
  queue->attempt_uid = attempt_uid;
  return Begin(queue, [&](const std::string& request, v1::ServerMessage& message) {
    message.mutable_ask()->set_request(request);
    message.mutable_ask()->set_attempt_uid(attempt_uid);
    message.mutable_ask()->set_question(question);
  });
}

std::string FileRelay::LeastAsked(const std::vector<std::string>& nodes,
                                  const std::string& attempt_uid) {
  std::map<std::string, int> asked;
  {
    MutexLock lock(mutex_);
    for (const auto& [request, queue] : queues_) {
      if (queue->attempt_uid == attempt_uid) ++asked[queue->node];
    }
  }
  return *std::ranges::min_element(nodes, {}, [&](const std::string& node) { return asked[node]; });
}

absl::StatusOr<std::unique_ptr<FileRelay::Transfer>> FileRelay::Record(
    const std::string& node, const v1::RecordSteps& order) {
  const auto queue = std::make_shared<Queue>();
  queue->node = node;
  queue->attempt_uid = order.attempt_uid();
  queue->patience = kRecordingPatience;
  return Begin(queue, [&](const std::string& request, v1::ServerMessage& message) {
    *message.mutable_record_steps() = order;
    message.mutable_record_steps()->set_request(request);
  });
}

FileRelay::Transfer::~Transfer() {
  MutexLock lock(relay_.mutex_);
  relay_.queues_.erase(request_);
  queue_->dropped = true;
  queue_->changed.NotifyAll();
}

bool FileRelay::Transfer::Await(Nanos timeout, v1::SendFileRequest& chunk, bool& heard) {
  const MonoTime deadline = Clock::Real().Mono() + timeout;
  MutexLock lock(relay_.mutex_);
  while (queue_->chunks.empty() && !queue_->ended) {
    const Nanos left = deadline - Clock::Real().Mono();
    heard = queue_->heard;
    if (left <= Nanos(0)) return false;
    queue_->changed.WaitFor(relay_.mutex_, left);
  }
  if (queue_->chunks.empty()) return true;
  chunk = std::move(queue_->chunks.front());
  queue_->chunks.pop_front();
  queue_->changed.NotifyAll();
  return true;
}

absl::Status FileRelay::Transfer::Silent(Nanos timeout) const {
  if (queue_->attempt_uid.empty()) {
    return DeadlineExceeded(fmt::format("{} did not send the file", queue_->node));
  }
  return DeadlineExceeded(fmt::format("the job on {} has not answered for {} s", queue_->node,
                                      std::chrono::ceil<std::chrono::seconds>(timeout).count()));
}

absl::StatusOr<v1::SendFileRequest> FileRelay::Transfer::Next(Nanos timeout, const Gone& gone) {
  const MonoTime deadline = Clock::Real().Mono() + timeout;
  v1::SendFileRequest chunk;
  for (;;) {
    const Nanos left = deadline - Clock::Real().Mono();
    bool heard = false;
    if (Await(std::min(left, kSeesGone), chunk, heard)) break;
    if (gone && gone()) return absl::CancelledError("the caller has gone");
    if (left <= kSeesGone) return Silent(timeout);
    const bool asks = !queue_->attempt_uid.empty();
    // A node that sends already does so in a call of its own, which outlasts its stream.
    if (!heard && !relay_.registry_.IsConnected(queue_->node)) {
      return Unavailable(Away(queue_->node, asks));
    }
  }
  if (!chunk.error().empty()) {
    return NotFound(fmt::format("{}: {}", queue_->node, Plain(chunk.error(), 1000)));
  }
  return chunk;
}

absl::Status FileRelay::Push(v1::SendFileRequest chunk, const std::string& node) {
  const MonoTime begun = Clock::Real().Mono();
  MutexLock lock(mutex_);
  const auto found = queues_.find(chunk.request());
  const std::shared_ptr<Queue> queue = found == queues_.end() ? nullptr : found->second;
  while (true) {
    if (queue == nullptr || queue->dropped || (!node.empty() && queue->node != node)) {
      return NotFound("nobody waits for this file any more");
    }
    const auto size = static_cast<int64_t>(chunk.data().size());
    if (chunk.error().empty() &&
        (chunk.offset() != queue->next || chunk.total_size() < chunk.offset() ||
         chunk.total_size() - chunk.offset() < size)) {
      return InvalidArgument(fmt::format("offset: {} bytes at {} of {} are not what follows at {}",
                                         size, chunk.offset(), chunk.total_size(), queue->next));
    }
    queue->heard = true;
    if (queue->chunks.size() < kMaxQueuedChunks) {
      queue->next += size;
      queue->chunks.push_back(std::move(chunk));
      queue->changed.NotifyAll();
      return absl::OkStatus();
    }
    const Nanos left = begun + queue->patience - Clock::Real().Mono();
    if (left <= Nanos(0)) return DeadlineExceeded("the reader of this file takes nothing");
    queue->changed.WaitFor(mutex_, left);
  }
}

void FileRelay::End(const std::string& request) {
  MutexLock lock(mutex_);
  const auto queue = queues_.find(request);
  if (queue == queues_.end()) return;
  queue->second->ended = true;
  queue->second->changed.NotifyAll();
}

}  // namespace sft::server
