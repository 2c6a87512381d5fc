#pragma once

#include "common/base/status.h"
#include "server/blob/blob_store.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// The data set with the verdict of this server's check. That of an earlier server may be another:
// then the file is read again, and the verdict kept. INVALID_ARGUMENT when no job can read the
// file.
absl::StatusOr<DatasetRecord> WithVerdict(Store& store, BlobStore& blobs, DatasetRecord dataset);

}  // namespace sft::server
