#include "client/base/artifact_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "client/base/interrupt.h"
#include "common/base/json.h"
#include "sft/v1/data_service.grpc.pb.h"

namespace sft::client {

namespace {

absl::StatusOr<std::string> ReadArtifactText(Connection& connection, const std::string& job,
                                             const std::string& path, size_t most) {
  grpc::ClientContext context;
  const Interrupt interrupt(context);
  v1::DownloadArtifactFileRequest request;
  request.set_name(job);
  request.set_path(path);
  const auto reader = connection.To<v1::DataService>().DownloadArtifactFile(&context, request);
  std::string text;
  v1::DownloadChunk chunk;
  while (text.size() <= most && reader->Read(&chunk)) text += chunk.data();
  if (text.size() > most) {
    context.TryCancel();
    return ResourceExhausted(
        fmt::format("{} of {} is larger than {} MiB; download it", path, job, most >> 20));
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return connection.Describe(status);
  return text;
}

absl::Status Damaged(const std::string& job, const std::string& path) {
  return DataLoss(fmt::format("{} of {} is not what it should be", path, job));
}

}  // namespace

absl::StatusOr<Json> ReadArtifactJson(Connection& connection, const std::string& job,
                                      const std::string& path) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  SFT_ASSIGN_OR_RETURN(const std::string text, ReadArtifactText(connection, job, path, kMostBytes));
  Json json = ParseOrderedJson(text);
  if (!json.is_object()) return Damaged(job, path);
  return json;
}

absl::StatusOr<std::vector<Json>> ReadArtifactLines(Connection& connection, const std::string& job,
                                                    const std::string& path) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  SFT_ASSIGN_OR_RETURN(const std::string text, ReadArtifactText(connection, job, path, kMostBytes));
  std::vector<Json> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.push_back(ParseOrderedJson(std::string_view(text).substr(at, end - at)));
    if (!lines.empty() && !lines.back().is_object()) return Damaged(job, path);
    at = end + 1;
  }
  return lines;
}

}  // namespace sft::client
