# Haystack with detectron2, which has to be built: docker build -f tools/detectron2.Dockerfile .
FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel
RUN apt-get update && apt-get install -y --no-install-recommends git g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /haystack
COPY . .
# The commit against which the segmenter was tested; detectron2 has had no release since 2021.
RUN pip install --no-cache-dir '.[gpu,detectron2]' \
 && FORCE_CUDA=1 pip install --no-cache-dir --no-build-isolation \
    'git+https://github.com/facebookresearch/detectron2.git@02b5c4e'
ENTRYPOINT ["haystack"]
