#include "worker/node/peer_models.h"

#include <utility>

namespace sft::worker {
namespace {

// Bytes of a file as they come, in pieces of the reader's size.
class PeerBody : public hub::HttpBody {
 public:
  explicit PeerBody(std::unique_ptr<ServerApi::ModelFile> file) : file_(std::move(file)) {}
  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    if (at_ == bytes_.size()) {
      absl::StatusOr<std::string> next = file_->Next();
      if (absl::IsAborted(next.status())) return next.status();
      // Whatever it is: the rest may come from elsewhere.
      if (!next.ok()) return Unavailable(Message(next.status()));
      bytes_ = *std::move(next);
      at_ = 0;
    }
    const size_t count = bytes_.copy(data, size, at_);
    at_ += count;
    return count;
  }

 private:
  const std::unique_ptr<ServerApi::ModelFile> file_;
  std::string bytes_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<PeerFile> PeerModels::Open(const std::string& id, const std::string& commit,
                                          const std::string& path, int64_t offset,
                                          const hub::StopCheck& stop) {
  v1::FetchModelFileRequest request;
  request.set_node(setup_.node);
  request.set_model(id);
  request.set_commit(commit);
  request.set_path(path);
  request.set_offset(offset);
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<ServerApi::ModelFile> file,
                       server_.FetchModelFile(request, stop));
  std::string node = file->node();
  return PeerFile{std::move(node), std::make_unique<PeerBody>(std::move(file))};
}

}  // namespace sft::worker
