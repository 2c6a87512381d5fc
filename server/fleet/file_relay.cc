#include "server/fleet/file_relay.h"

#include <fmt/format.h>

#include "common/base/ids.h"
#include "common/base/plain_text.h"

namespace sft::server {

absl::StatusOr<std::unique_ptr<FileRelay::Transfer>> FileRelay::Begin(const std::string& node,
                                                                      int64_t offset,
                                                                      const Fill& fill) {
  const std::string request = RandomId("fetch");
  {
    MutexLock lock(mutex_);
    if (static_cast<int>(queues_.size()) >= kMaxTransfers) {
      return ResourceExhausted(
          fmt::format("{} files are being fetched from nodes: try again later", queues_.size()));
    }
    queues_[request].node = node;
    queues_[request].next = offset;
  }
  std::unique_ptr<Transfer> transfer(new Transfer(*this, request, node));
  v1::ServerMessage message;
  fill(request, message);
  if (!registry_.Send(node, message)) {
    return Unavailable(fmt::format("{} keeps the file and is not connected now", node));
  }
  return transfer;
}

absl::StatusOr<std::unique_ptr<FileRelay::Transfer>> FileRelay::Start(
    const std::string& node, const std::string& path, int64_t offset,
    const std::vector<std::string>& jobs) {
  return Begin(node, offset, [&](const std::string& request, v1::ServerMessage& message) {
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
  return Begin(node, 0, [&](const std::string& request, v1::ServerMessage& message) {
    message.mutable_ask()->set_request(request);
    message.mutable_ask()->set_attempt_uid(attempt_uid);
    message.mutable_ask()->set_question(question);
  });
}

FileRelay::Transfer::~Transfer() {
  MutexLock lock(relay_.mutex_);
  relay_.queues_.erase(request_);
  relay_.changed_.NotifyAll();
}

absl::StatusOr<v1::SendFileRequest> FileRelay::Transfer::Next(Nanos timeout) {
  MutexLock lock(relay_.mutex_);
  Queue& queue = relay_.queues_.at(request_);
  while (queue.chunks.empty() && !queue.ended) {
    // A wake-up for another transfer restarts the wait: it bounds silence, not the whole transfer.
    if (!relay_.changed_.WaitFor(relay_.mutex_, timeout)) {
      return DeadlineExceeded(fmt::format("{} did not send the file", node_));
    }
  }
  if (queue.chunks.empty()) return v1::SendFileRequest();
  v1::SendFileRequest chunk = std::move(queue.chunks.front());
  queue.chunks.pop_front();
  relay_.changed_.NotifyAll();
  if (!chunk.error().empty()) {
    return NotFound(fmt::format("{}: {}", node_, Plain(chunk.error(), 1000)));
  }
  return chunk;
}

absl::Status FileRelay::Push(v1::SendFileRequest chunk, const std::string& node) {
  MutexLock lock(mutex_);
  while (true) {
    const auto queue = queues_.find(chunk.request());
    if (queue == queues_.end() || (!node.empty() && queue->second.node != node)) {
      return NotFound("nobody waits for this file any more");
    }
    const auto size = static_cast<int64_t>(chunk.data().size());
    if (chunk.error().empty() &&
        (chunk.offset() != queue->second.next || chunk.total_size() < chunk.offset() ||
         chunk.total_size() - chunk.offset() < size)) {
      return InvalidArgument(fmt::format("offset: {} bytes at {} of {} are not what follows at {}",
                                         size, chunk.offset(), chunk.total_size(),
                                         queue->second.next));
    }
    if (queue->second.chunks.size() < kMaxQueuedChunks) {
      queue->second.next += size;
      queue->second.chunks.push_back(std::move(chunk));
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    if (!changed_.WaitFor(mutex_, kPatience)) {
      return DeadlineExceeded("the reader of this file takes nothing");
    }
  }
}

void FileRelay::End(const std::string& request) {
  MutexLock lock(mutex_);
  const auto queue = queues_.find(request);
  if (queue != queues_.end()) queue->second.ended = true;
  changed_.NotifyAll();
}

}  // namespace sft::server
