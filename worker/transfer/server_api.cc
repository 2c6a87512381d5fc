#include "worker/transfer/server_api.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"
#include "worker/base/io_thread.h"

namespace sft::worker {
namespace {

// Deadline of one stream; a longer transfer resumes where it was.
constexpr std::chrono::minutes kTransferDeadline{15};
// How soon a stop ends a transfer.
constexpr std::chrono::milliseconds kStopInterval{200};

using Channels = std::function<std::shared_ptr<grpc::Channel>()>;

// The file is opened with the reader's rights, and then read by this process.
absl::StatusOr<io::UniqueFd> OpenAs(const std::optional<RankUser>& reader, const std::string& path,
                                    io::Links links) {
  const RankRights rights(reader);
  return io::OpenForRead(path, links);
}

// A stream of FetchModelFile.
class GrpcModelFile : public ServerApi::ModelFile {
 public:
  GrpcModelFile(const std::shared_ptr<grpc::Channel>& channel, const std::string& incarnation,
                const v1::FetchModelFileRequest& request, StopCheck stop)
      : stop_(std::move(stop)), stub_(v1::WorkerService::NewStub(channel)) {
    rpc::SetDeadline(context_, kTransferDeadline);
    context_.AddMetadata(rpc::kIncarnationKey, incarnation);
    stream_ = stub_->FetchModelFile(&context_, request);
    // A blocked read ends only when bytes arrive or the call is cancelled.
    watch_ = std::make_unique<IoThread>("model-file", [this]() -> Nanos {
      if (stop_ && stop_()) context_.TryCancel();
      return kStopInterval;
    });
  }
  ~GrpcModelFile() override {
    context_.TryCancel();
    watch_.reset();
    if (!ended_) (void)stream_->Finish();
  }
  // Waits for the first response, which names the sender.
  absl::Status Begin() {
    SFT_ASSIGN_OR_RETURN(first_, Read(node_));
    return absl::OkStatus();
  }
  const std::string& node() const override { return node_; }
  absl::StatusOr<std::string> Next() override {
    if (!first_.empty()) return std::exchange(first_, "");
    std::string sender;
    return Read(sender);
  }

 private:
  absl::StatusOr<std::string> Read(std::string& sender) {
    v1::FetchModelFileResponse response;
    while (!ended_ && stream_->Read(&response)) {
      if (!response.from_node().empty()) sender = response.from_node();
      if (!response.data().empty()) return std::move(*response.mutable_data());
    }
    if (ended_) return std::string();
    ended_ = true;
    const absl::Status status = rpc::FromGrpc(stream_->Finish());
    if (stop_ && stop_()) return Aborted("the download was stopped");
    SFT_RETURN_IF_ERROR(status);
    return std::string();
  }

  const StopCheck stop_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::FetchModelFileResponse>> stream_;
  std::unique_ptr<IoThread> watch_;
  std::string node_, first_;
  bool ended_ = false;
};

class GrpcServerApi : public ServerApi {
 public:
  GrpcServerApi(Channels channels, std::string incarnation, std::optional<RankUser> reader)
      : channels_(std::move(channels)),
        incarnation_(std::move(incarnation)),
        reader_(std::move(reader)) {}

  absl::StatusOr<int64_t> AppendLog(const v1::AppendLogRequest& request) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, rpc::kUnaryDeadline);
    v1::AppendLogResponse response;
    SFT_RETURN_IF_ERROR(rpc::FromGrpc(worker->AppendLog(&context, request, &response)));
    return response.offset();
  }

  absl::StatusOr<int64_t> AppendEvents(const v1::AppendEventsRequest& request) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, rpc::kUnaryDeadline);
    v1::AppendEventsResponse response;
    SFT_RETURN_IF_ERROR(rpc::FromGrpc(worker->AppendEvents(&context, request, &response)));
    return response.offset();
  }

  absl::Status UploadArtifact(const BlobFile& file, const StopCheck& stop) override {
    const auto data = v1::DataService::NewStub(channels_());
    const auto purpose =
        file.is_checkpoint ? v1::UploadBlobRequest::CHECKPOINT : v1::UploadBlobRequest::ARTIFACT;
    v1::StatBlobRequest question;
    question.set_sha256(file.sha256);
    question.set_purpose(purpose);
    question.set_attempt_uid(file.attempt_uid);
    question.set_node(file.node);
    v1::StatBlobResponse has;
    {
      grpc::ClientContext context;
      Begin(context, rpc::kUnaryDeadline);
      SFT_RETURN_IF_ERROR(rpc::FromGrpc(data->StatBlob(&context, question, &has)));
    }
    if (has.complete()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, OpenAs(file.reader, file.path, io::Links::kRefuse));
    grpc::ClientContext context;
    Begin(context, kTransferDeadline);
    v1::UploadBlobResponse response;
    const auto stream = data->UploadBlob(&context, &response);
    v1::UploadBlobRequest chunk;
    chunk.set_sha256(file.sha256);
    chunk.set_size(file.size);
    chunk.set_offset(has.received());
    chunk.set_purpose(purpose);
    chunk.set_attempt_uid(file.attempt_uid);
    chunk.set_node(file.node);
    chunk.set_display_name(file.display_name);
    const absl::Status sent = SendChunks(*stream, fd.get(), file, has.received(), chunk, stop);
    if (!sent.ok()) context.TryCancel();
    stream->WritesDone();
    const absl::Status answered = rpc::FromGrpc(stream->Finish());
    return sent.ok() ? answered : sent;
  }

  absl::Status Download(const std::string& sha256, int64_t offset,
                        const std::function<absl::Status(std::string_view)>& sink,
                        const StopCheck& stop) override {
    const auto data = v1::DataService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, kTransferDeadline);
    v1::DownloadBlobRequest request;
    request.set_sha256(sha256);
    request.set_offset(offset);
    const auto stream = data->DownloadBlob(&context, request);
    // A blocked read ends only when bytes arrive or the connection is closed.
    const IoThread watch("download", [&]() -> Nanos {
      if (stop()) context.TryCancel();
      return kStopInterval;
    });
    v1::DownloadChunk chunk;
    while (stream->Read(&chunk)) {
      const absl::Status taken = sink(chunk.data());
      if (taken.ok()) continue;
      context.TryCancel();
      (void)stream->Finish();
      return taken;
    }
    const absl::Status ended = rpc::FromGrpc(stream->Finish());
    return absl::IsCancelled(ended) && stop() ? Aborted("the download was stopped") : ended;
  }

  absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest& request) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, rpc::kUnaryDeadline);
    v1::CommitCheckpointResponse response;
    return rpc::FromGrpc(worker->CommitCheckpoint(&context, request, &response));
  }

  absl::Status CommitArtifact(const v1::CommitArtifactRequest& request) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, rpc::kUnaryDeadline);
    v1::Artifact artifact;
    return rpc::FromGrpc(worker->CommitArtifact(&context, request, &artifact));
  }

  absl::StatusOr<std::string> HubToken(const v1::GetHubTokenRequest& request) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, rpc::kUnaryDeadline);
    v1::GetHubTokenResponse response;
    SFT_RETURN_IF_ERROR(rpc::FromGrpc(worker->GetHubToken(&context, request, &response)));
    return response.token();
  }

  absl::StatusOr<v1::AskJudgeResponse> AskJudge(const v1::AskJudgeRequest& request,
                                                const StopCheck& stop) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, kTransferDeadline);
    const IoThread watch("judge", [&]() -> Nanos {
      if (stop()) context.TryCancel();
      return kStopInterval;
    });
    v1::AskJudgeResponse response;
    const absl::Status status = rpc::FromGrpc(worker->AskJudge(&context, request, &response));
    if (absl::IsCancelled(status) && stop()) return Aborted("the question was stopped");
    SFT_RETURN_IF_ERROR(status);
    return response;
  }

  absl::StatusOr<std::unique_ptr<ModelFile>> FetchModelFile(
      const v1::FetchModelFileRequest& request, const StopCheck& stop) override {
    auto file = std::make_unique<GrpcModelFile>(channels_(), incarnation_, request, stop);
    SFT_RETURN_IF_ERROR(file->Begin());
    return std::unique_ptr<ModelFile>(std::move(file));
  }

  absl::Status SendFile(const v1::FetchFile& request, const std::string& path,
                        const std::string& error) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    Begin(context, kTransferDeadline);
    v1::SendFileResponse response;
    const auto stream = worker->SendFile(&context, &response);
    absl::Status read = error.empty() ? StreamFile(*stream, request, path) : Aborted(error);
    if (!read.ok()) {
      v1::SendFileRequest failure;
      failure.set_request(request.request());
      failure.set_error(std::string(Message(read)));
      stream->Write(failure);
    }
    stream->WritesDone();
    return rpc::FromGrpc(stream->Finish());
  }

  absl::Status SendLines(const std::string& request, const NextLine& next) override {
    const auto worker = v1::WorkerService::NewStub(channels_());
    grpc::ClientContext context;
    // An answer may take hours; the server ends one of which it hears nothing.
    context.AddMetadata(rpc::kIncarnationKey, incarnation_);
    v1::SendFileResponse response;
    const auto stream = worker->SendFile(&context, &response);
    v1::SendFileRequest chunk;
    chunk.set_request(request);
    for (;;) {
      const absl::StatusOr<std::string> line = next();
      if (line.ok() && line->empty()) break;
      chunk.set_offset(chunk.total_size());
      if (line.ok()) chunk.set_data(*line);
      if (!line.ok()) chunk.set_error(std::string(Message(line.status())));
      chunk.set_total_size(chunk.offset() + static_cast<int64_t>(chunk.data().size()));
      if (!stream->Write(chunk) || !line.ok()) break;
    }
    stream->WritesDone();
    return rpc::FromGrpc(stream->Finish());
  }

 private:
  void Begin(grpc::ClientContext& context, Nanos timeout) const {
    rpc::SetDeadline(context, timeout);
    context.AddMetadata(rpc::kIncarnationKey, incarnation_);
  }

  static absl::Status SendChunks(grpc::ClientWriter<v1::UploadBlobRequest>& stream, int fd,
                                 const BlobFile& file, int64_t offset, v1::UploadBlobRequest& chunk,
                                 const StopCheck& stop) {
    do {
      if (stop()) return Aborted("the upload was stopped");
      std::string data(std::min(rpc::kChunkBytes, file.size - offset), '\0');
      SFT_ASSIGN_OR_RETURN(const size_t got,
                           io::ReadAt(fd, offset, data.data(), data.size(), file.path));
      if (got != data.size()) return DataLoss(file.path + " became shorter while it was uploaded");
      offset += static_cast<int64_t>(got);
      chunk.set_data(std::move(data));
      if (!stream.Write(chunk)) return absl::OkStatus();  // Finish returns the reason
      chunk.Clear();
    } while (offset < file.size);
    return absl::OkStatus();
  }

  absl::Status StreamFile(grpc::ClientWriter<v1::SendFileRequest>& stream,
                          const v1::FetchFile& request, const std::string& path) const {
    SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, OpenAs(reader_, path, io::Links::kFollow));
    SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(fd.get(), path));
    int64_t offset = request.offset();
    do {
      std::string data(std::clamp<int64_t>(size - offset, 0, rpc::kChunkBytes), '\0');
      SFT_ASSIGN_OR_RETURN(const size_t got,
                           io::ReadAt(fd.get(), offset, data.data(), data.size(), path));
      if (got != data.size()) return DataLoss(path + " became shorter while it was sent");
      v1::SendFileRequest chunk;
      chunk.set_request(request.request());
      chunk.set_offset(offset);
      chunk.set_total_size(size);
      chunk.set_data(std::move(data));
      if (!stream.Write(chunk)) return absl::OkStatus();
      offset += static_cast<int64_t>(got);
    } while (offset < size);
    return absl::OkStatus();
  }

  const Channels channels_;
  const std::string incarnation_;
  const std::optional<RankUser> reader_;
};

}  // namespace

std::unique_ptr<ServerApi> MakeServerApi(std::function<std::shared_ptr<grpc::Channel>()> channels,
                                         const std::string& incarnation,
                                         std::optional<RankUser> reader) {
  return std::make_unique<GrpcServerApi>(std::move(channels), incarnation, std::move(reader));
}

}  // namespace sft::worker
