#include "client/base/artifact_source.h"

#include <algorithm>
#include <utility>

namespace sft::client {
namespace {

constexpr int kMostBreaks = 5;

}  // namespace

struct ArtifactSource::Stream {
  grpc::ClientContext context;
  Interrupt interrupt{context};
  std::unique_ptr<grpc::ClientReader<v1::DownloadChunk>> reader;
};

ArtifactSource::ArtifactSource(Connection& connection, const std::string& artifact,
                               const std::string& path, int64_t offset)
    : connection_(connection) {
  request_.set_name(artifact);
  request_.set_path(path);
  request_.set_offset(offset);
}

ArtifactSource::~ArtifactSource() {
  if (!stream_) return;
  // A caller that stops early does not wait for the rest of the stream.
  stream_->context.TryCancel();
  stream_->reader->Finish();
}

void ArtifactSource::Open() {
  stream_ = std::make_unique<Stream>();
  stream_->reader =
      connection_.To<v1::DataService>().DownloadArtifactFile(&stream_->context, request_);
}

absl::StatusOr<size_t> ArtifactSource::Read(char* data, size_t size) {
  while (taken_ == chunk_.size()) {
    if (!stream_) Open();
    v1::DownloadChunk chunk;
    if (stream_->reader->Read(&chunk)) {
      chunk_ = std::move(*chunk.mutable_data());
      taken_ = 0;
      request_.set_offset(request_.offset() + static_cast<int64_t>(chunk_.size()));
      if (!chunk_.empty()) breaks_ = 0;
      continue;
    }
    const grpc::Status status = stream_->reader->Finish();
    stream_.reset();
    if (Interrupt::Raised()) return absl::CancelledError("interrupted");
    if (status.ok()) return size_t{0};
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || ++breaks_ == kMostBreaks) {
      return connection_.Describe(status);
    }
    connection_.clock().Sleep(std::chrono::milliseconds(200) * (1 << breaks_));
  }
  const size_t count = std::min(size, chunk_.size() - taken_);
  chunk_.copy(data, count, taken_);
  taken_ += count;
  return count;
}

}  // namespace sft::client
