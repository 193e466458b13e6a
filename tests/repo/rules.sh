#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The rules of the repository that a compiler doesn't check (CONTRIBUTING.md states them). Prints every breach.
set -euo pipefail
cd "$1"
breaches=0
breach() {
  printf '%s\n' "$*"
  breaches=$((breaches + 1))
}

# Files of the repository by name, without what is built or fetched.
files() {
  local names=()
  for name in "$@"; do names+=(-o -name "$name"); done
  find . \( -path './build*' -o -path ./.git -o -path './.deps*' -o -path ./.dev -o -path ./.cache -o -path ./data \
    -o -path ./runs -o -path ./tests/data \) -prune -o -type f \( "${names[@]:1}" \) -print | sort
}

while read -r file; do
  head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || breach "$file: no SPDX line at the top"
done < <(files '*.h' '*.cpp' '*.cu' '*.cuh' '*.cmake' '*.cmake.in' CMakeLists.txt '*.sh' '*.py' bootstrap)

# Every room is known to the build and has tests; nothing else lies in src/.
listed=" $(sed -nE '/^ *(set|list)\((DS_ROOMS|APPEND DS_ROOMS)/{s/.*DS_ROOMS//;s/\)//;p}' CMakeLists.txt | tr '\n' ' ') "
for room in src/*/; do
  room=$(basename "$room")
  case $listed in *" $room "*) ;; *) breach "src/$room: not in the list of rooms in CMakeLists.txt" ;; esac
  grep -q "^| \`$room\` |" docs/architecture.md || breach "src/$room: docs/architecture.md doesn't list it"
  [ "$room" != apps ] || continue  # the programs are tested as users start them, in tests/train
  [ ! -f "src/$room/CMakeLists.txt" ] || [ -f "tests/$room/CMakeLists.txt" ] || breach "src/$room: no tests/$room"
done

# CUDA lives in the plug-in alone, and its kernels see no torch.
while read -r file; do
  case $file in ./src/device/cuda/*) continue ;; esac
  if grep -nE '#include *[<"](cuda|nccl|cudnn|cublas)[a-z_0-9]*(\.h|/)' "$file"; then breach "$file: CUDA outside the plug-in"; fi
done < <(files '*.h' '*.cpp' '*.cu' '*.cuh')
while read -r file; do
  if grep -nE '#include *[<"](torch|ATen|c10)/' "$file"; then breach "$file: a torch header in a kernel source"; fi
done < <(files '*.cu' '*.cuh')

while read -r file; do
  if grep -nE 'using namespace (std|at|torch);' "$file"; then breach "$file: using namespace"; fi
done < <(files '*.h' '*.cpp' '*.cu' '*.cuh')

# The page of exit codes and the enum say the same.
codes=$(sed -nE 's/^  ([a-z_]+) = ([0-9]+),.*/\2 \1/p' src/base/error.h)
# shellcheck disable=SC2016
documented=$(sed -nE 's/^\| ([0-9]+) \| `([a-z_]+)` \|.*/\1 \2/p' docs/errors.md)
if [ -z "$codes" ] || [ "$codes" != "$documented" ]; then
  breach "docs/errors.md and src/base/error.h differ: $(diff <(echo "$codes") <(echo "$documented") | tr '\n' ' ')"
fi

if command -v shellcheck >/dev/null 2>&1; then
  mapfile -t scripts < <(files '*.sh')
  shellcheck bootstrap .ci/run "${scripts[@]}" || breach "shellcheck has complaints"
fi

[ "$breaches" = 0 ] || { printf '%s breaches\n' "$breaches"; exit 1; }
