#pragma once

#include <memory>
#include <string>

#include "client/base/connection.h"
#include "client/base/interrupt.h"
#include "common/hub/http.h"
#include "sft/v1/data_service.grpc.pb.h"

namespace sft::client {

// A file of what a job delivered, as it comes from the server: nothing of it is kept here. A stream
// that breaks is opened again where it was.
class ArtifactSource : public hub::HttpSource {
 public:
  // `connection` is borrowed.
  ArtifactSource(Connection& connection, const std::string& artifact, const std::string& path,
                 int64_t offset);
  ~ArtifactSource() override;

  absl::StatusOr<size_t> Read(char* data, size_t size) override;

 private:
  struct Stream;
  void Open();

  Connection& connection_;
  v1::DownloadArtifactFileRequest request_;
  std::unique_ptr<Stream> stream_;
  std::string chunk_;
  size_t taken_ = 0;  // of the chunk
  int breaks_ = 0;    // since bytes came
};

}  // namespace sft::client
