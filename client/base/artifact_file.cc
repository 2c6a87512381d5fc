#include "client/base/artifact_file.h"

#include <fmt/format.h>

#include "client/base/interrupt.h"
#include "common/base/json.h"
#include "sft/v1/data_service.grpc.pb.h"

namespace sft::client {

absl::StatusOr<Json> ReadArtifactJson(Connection& connection, const std::string& job,
                                      const std::string& path) {
  constexpr size_t kMostBytes = 64 << 20;
  grpc::ClientContext context;
  const Interrupt interrupt(context);
  v1::DownloadArtifactFileRequest request;
  request.set_name(job);
  request.set_path(path);
  const auto reader = connection.To<v1::DataService>().DownloadArtifactFile(&context, request);
  std::string text;
  v1::DownloadChunk chunk;
  while (text.size() < kMostBytes && reader->Read(&chunk)) text += chunk.data();
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return connection.Describe(status);
  Json json = ParseOrderedJson(text);
  if (!json.is_object())
    return DataLoss(fmt::format("{} of {} is not what it should be", path, job));
  return json;
}

}  // namespace sft::client
