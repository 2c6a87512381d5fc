#pragma once

#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "server/blob/blob_store.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// The data set with the verdict of this server's check. That of an earlier server may be another:
// then the file is read again, and the verdict kept. INVALID_ARGUMENT when no job can read the
// file.
absl::StatusOr<DatasetRecord> WithVerdict(Store& store, BlobStore& blobs, DatasetRecord dataset);

// Why the job cannot use the rows, at most the first `taken` of them (0: all); empty if it can.
// Rows of preferences are looked at again: the verdict is about texts.
absl::StatusOr<std::string> ProblemOfRows(BlobStore& blobs, const DatasetRecord& dataset,
                                          const spec::JobSpec& spec, int64_t taken);

}  // namespace sft::server
