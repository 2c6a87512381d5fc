# Sourced: finds the torch of python3 and lets programs of a bundle or of pack_tests.sh load it.
#   $torch_dir         the installed torch package
#   $LD_LIBRARY_PATH   its libraries and those of the nvidia wheels beside it, first
torch_dir=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' | tail -n 1)
[ -f "$torch_dir/lib/libtorch_cuda.so" ] \
  || { echo "python3 has no torch with CUDA (found: ${torch_dir:-nothing})" >&2; exit 1; }
for torch_libraries in "$torch_dir"/../nvidia/*/lib; do
  LD_LIBRARY_PATH=$torch_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH=$torch_dir/lib:$LD_LIBRARY_PATH
# NVLink multicast stays off unless the caller asks for it: on shared hosts it can leave GPUs unusable.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
