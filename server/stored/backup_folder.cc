#include "server/stored/backup_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "server/blob/blob_store.h"
#include "server/database/migrations.h"

namespace sft::server {
namespace {

bool IsBlobList(const nlohmann::json& blobs) {
  return blobs.is_array() && std::all_of(blobs.begin(), blobs.end(), [](const auto& blob) {
           return blob.is_object() && blob.contains("sha256") && blob["sha256"].is_string();
         });
}

bool IsTextList(const nlohmann::json& texts) {
  return texts.is_array() &&
         std::all_of(texts.begin(), texts.end(), [](const auto& text) { return text.is_string(); });
}

}  // namespace

std::string BlobPath(const std::string& data_dir, const std::string& store,
                     const std::string& sha256) {
  return BlobStore::PathIn(data_dir + store, sha256);
}

absl::StatusOr<nlohmann::json> ReadManifest(const std::string& folder) {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(folder + kManifest));
  nlohmann::json manifest = ParseJson(text);
  const bool whole = manifest.is_object() && manifest.contains("schema") &&
                     manifest["schema"].is_number_integer() && manifest.contains("sha256") &&
                     manifest["sha256"].is_string() && manifest.contains("version") &&
                     manifest["version"].is_string() && manifest.contains("blobs") &&
                     IsBlobList(manifest["blobs"]) &&
                     IsBlobList(manifest.value("checkpoints", nlohmann::json::array())) &&
                     IsTextList(manifest.value("left_out", nlohmann::json::array()));
  if (!whole) return DataLoss(fmt::format("{}{} cannot be read", folder, kManifest));
  return manifest;
}

absl::Status CheckBackup(const std::string& path, const nlohmann::json& manifest) {
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(path));
  if (hash.sha256 != manifest["sha256"].get<std::string>()) {
    return DataLoss(fmt::format("{} is not what was written: use another backup", path));
  }
  const int schema = manifest["schema"].get<int>();
  if (schema > Migrations().back().version) {
    return FailedPrecondition(
        fmt::format("the backup has schema {}, this server knows up to {}: it was made by "
                    "sft-server {}; restore "
                    "it with that one or a newer one",
                    schema, Migrations().back().version, manifest["version"].get<std::string>()));
  }
  return absl::OkStatus();
}

}  // namespace sft::server
