#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/status.h"

// What a backup's folder and a data folder have in common.

namespace sft::server {

// Folders of a data folder, and files of a backup's (Backups).
inline constexpr char kDatabase[] = "/server.db", kManifest[] = "/manifest.json",
                      kBlobs[] = "/blobs", kCheckpoints[] = "/checkpoints", kKeys[] = "/tls";
inline constexpr const char* kGrowing[] = {"/logs", "/metrics"};

// Of a blob in a store (kBlobs, kCheckpoints) of a data folder.
std::string BlobPath(const std::string& data_dir, const std::string& store,
                     const std::string& sha256);

// The manifest of a backup's folder; DATA_LOSS when it cannot be read.
absl::StatusOr<nlohmann::json> ReadManifest(const std::string& folder);
// Holds the database `path` of a backup against its manifest, and its schema against this server's.
absl::Status CheckBackup(const std::string& path, const nlohmann::json& manifest);

}  // namespace sft::server
